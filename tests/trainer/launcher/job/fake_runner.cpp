#include "tests/trainer/launcher/job/fake_runner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace narrowcast::launcher {

pid_t FakeRunner::start(const WorkerCommand& command) {
  group_lives_ = true;
  TORCH_CHECK_VALUE(command.rank != refused_rank, "rank ", command.rank, " cannot be executed");
  log.push_back("start " + std::to_string(command.rank));
  environments.push_back(command.environment);
  running_.insert(command.rank);
  cleared_.erase(command.rank);
  return static_cast<pid_t>(1000 + command.rank);
}

Event FakeRunner::wait(std::optional<Clock::time_point> deadline) {
  if (group_lives_ && running_.empty() && leftovers == 0) {
    group_lives_ = false;
    return {.kind = Event::Kind::kAllGone};
  }
  while (!events_.empty() && (!deadline || events_.begin()->first <= *deadline)) {
    const auto [time, event] = *events_.begin();
    events_.erase(events_.begin());
    now_ = std::max(now_, time);
    const bool stale = event.kind == Event::Kind::kWorkerEnded && running_.erase(event.rank) == 0;
    if (!stale) {
      return event;
    }
  }
  if (!deadline) {
    throw std::logic_error("the supervisor would wait forever");
  }
  now_ = *deadline;
  return {.kind = Event::Kind::kTimeout};
}

void FakeRunner::send(int signal) {
  log.push_back(std::string("send SIG") + sigabbrev_np(signal) + " at " + std::to_string(milliseconds_now()));
  leftovers = leftovers_obey.contains(signal) ? 0 : leftovers;
  for (const int64_t rank : running_) {
    obey(rank, signal);
  }
}

void FakeRunner::send_to(int64_t rank, int signal) {
  log.push_back(std::string("send SIG") + sigabbrev_np(signal) + " to " + std::to_string(rank) + " at " +
                std::to_string(milliseconds_now()));
  obey(rank, signal);
}

bool FakeRunner::handles(int64_t rank, int /*signal*/) const { return !stopped.contains(rank); }

bool FakeRunner::clear(int64_t rank) {
  const bool is_clear = !clears || milliseconds_now() >= clears->count();
  if (is_clear && cleared_.insert(rank).second) {
    log.push_back("clear " + std::to_string(rank) + " at " + std::to_string(milliseconds_now()));
  }
  return is_clear;
}

void FakeRunner::obey(int64_t rank, int signal) {
  if (!ignored[rank].contains(signal)) {
    ends(rank, Milliseconds(milliseconds_now()) + reaction,
         obedient_ending.failed() ? obedient_ending : Ending{.signal = signal});
  }
}

int64_t FakeRunner::milliseconds_now() const {
  return std::chrono::duration_cast<Milliseconds>(now_.time_since_epoch()).count();
}

}  // namespace narrowcast::launcher

// Simulated workers, in a time that only passes during waits.
#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

class FakeRunner : public WorkerRunner {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Sets when and how a rank ends by itself; other ranks never do.
  void ends(int64_t rank, Milliseconds at, Ending ending) {
    happens(at, {.kind = Event::Kind::kWorkerEnded, .rank = rank, .ending = ending});
  }
  // The user sends the launcher a signal.
  void user_sends(int signal, Milliseconds at) { happens(at, {.kind = Event::Kind::kSignal, .signal = signal}); }

  // Advances the time outside of waits.
  void pass(Milliseconds time) { now_ += time; }

  // Signals that a rank ignores. Other signals end it after `reaction`.
  std::map<int64_t, std::set<int>> ignored;
  std::set<int64_t> stopped;  // ranks that handle no signal
  Milliseconds reaction{0};
  Ending obedient_ending = {};  // how a signalled rank ends; default: by the signal

  int64_t leftovers = 0;  // processes that workers left
  std::set<int> leftovers_obey = {SIGTERM, SIGKILL};
  int64_t refused_rank = -1;           // start() throws for this rank
  std::optional<Milliseconds> clears;  // when the processes that any worker leaves are gone; empty: at once

  std::string last_line;                           // of each rank; empty: "last line of R"
  std::vector<std::string> log;                    // "start R", "send SIGTERM at 100"
  std::vector<EnvironmentVariables> environments;  // of all that started

  pid_t start(const WorkerCommand& command) override;
  Event wait(std::optional<Clock::time_point> deadline) override;
  void send(int signal) override;
  void send_to(int64_t rank, int signal) override;
  bool handles(int64_t rank, int signal) const override;
  bool clear(int64_t rank) override;
  Clock::time_point now() const override { return now_; }
  std::vector<std::string> last_error_lines(int64_t rank) const override {
    return {last_line.empty() ? "last line of " + std::to_string(rank) : last_line};
  }

 private:
  void obey(int64_t rank, int signal);
  int64_t milliseconds_now() const;
  void happens(Milliseconds at, const Event& event) { events_.emplace(Clock::time_point(at), event); }

  Clock::time_point now_;
  bool group_lives_ = false;
  std::set<int64_t> running_;
  std::set<int64_t> cleared_;
  std::multimap<Clock::time_point, Event> events_;
};

}  // namespace narrowcast::launcher

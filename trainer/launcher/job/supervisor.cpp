#include "trainer/launcher/job/supervisor.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <utility>

#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

class Supervisor {
 public:
  Supervisor(WorkerRunner& runner, const SupervisorOptions& options)
      : runner_(runner), options_(options), started_(runner.now()), question_(started_ + options.monitor_interval) {}

  void start(const std::vector<WorkerCommand>& workers) {
    for (const WorkerCommand& worker : workers) {
      start(worker);
    }
  }

  Outcome finish() {
    try {
      handle_events();
    } catch (...) {
      if (job_goes_on()) {
        stop(SIGTERM);
        handle_events();  // It calls nothing of the caller's any more.
      }
      throw;
    }
    return outcome_;
  }

 private:
  enum class Phase {
    kRunning,
    kSuspecting,  // a rank failed and blames a peer: waits for another failure
    kStopping,    // workers were signalled to end
    kKilling,     // SIGKILL was sent
    kOver,
  };

  void handle_events() {
    while (phase_ != Phase::kOver) {
      handle(runner_.wait(wake_up()));
    }
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kWorkerEnded:
        return worker_ended(event);
      case Event::Kind::kSignal:
        return signalled(event.signal);
      case Event::Kind::kTimeout:
        return timed_out();
      case Event::Kind::kAllGone:
        all_gone_ = true;
        if (failed_.empty()) {
          phase_ = Phase::kOver;
        }
    }
  }

  void start(const WorkerCommand& worker) {
    all_gone_ = false;
    try {
      pids_[worker.rank] = runner_.start(worker);
    } catch (...) {
      kill();
      handle_events();
      throw;
    }
    running_.insert(worker.rank);
  }

  // Returns the time of the next action that no event causes.
  std::optional<Clock::time_point> wake_up() const {
    std::optional<Clock::time_point> next = deadline_;
    const auto consider = [&next](Clock::time_point time) { next = next ? std::min(*next, time) : time; };
    if (job_goes_on() && (options_.stop_wanted || options_.replacer != nullptr)) {
      consider(question_);
    }
    if (phase_ == Phase::kRunning && !failed_.empty()) {
      consider(runner_.now() + options_.start_interval);
    }
    for (const auto& [rank, time] : quitting_) {
      consider(time);
    }
    return next;
  }

  bool job_goes_on() const { return phase_ == Phase::kRunning || phase_ == Phase::kSuspecting; }

  void worker_ended(const Event& event) {
    running_.erase(event.rank);
    quitting_.erase(event.rank);
    if (job_goes_on() && event.ending.failed()) {
      failed(event);
    } else if (job_goes_on() && options_.succeeded) {
      options_.succeeded(event.rank);
    }
    if (running_.empty() && failed_.empty() && phase_ != Phase::kKilling) {
      end_leftovers();
    }
  }

  // The workers are gone. Processes that they left may ignore the signal that ended the workers, as background jobs of
  // a shell ignore SIGINT.
  void end_leftovers() {
    if (job_goes_on()) {
      stop(SIGTERM);
    } else {
      runner_.send(SIGTERM);
    }
  }

  void failed(const Event& event) {
    const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(runner_.now() - started_);
    const WorkerFailure failure = {event.rank, pids_[event.rank], event.ending, after};
    if (phase_ == Phase::kRunning && options_.replacer != nullptr && options_.replacer->replaces(failure)) {
      failed_[event.rank] = {.failure = failure, .deadline = runner_.now() + options_.kill_timeout};
      return start_replacements();
    }
    const bool blames_a_peer = event.ending.exit_code == program::kPeerFailed;
    if (!outcome_.failure || !blames_a_peer) {
      outcome_.failure = failure;
    }
    if (!blames_a_peer) {
      stop(SIGTERM);
    } else if (phase_ == Phase::kRunning) {
      phase_ = Phase::kSuspecting;
      deadline_ = runner_.now() + options_.blame_window;
    }
  }

  // Starts the processes that take the places of failed ranks, as far as they may start.
  void start_replacements() {
    std::vector<WorkerCommand> ready;
    for (const auto& [rank, entry] : failed_) {
      if (!runner_.clear(rank)) {
        if (runner_.now() >= entry.deadline) {  // A process survived SIGKILL. Nothing may start beside it.
          outcome_.failure = entry.failure;
          return stop(SIGTERM);
        }
      } else if (std::optional<WorkerCommand> command = options_.replacer->replacement(rank)) {
        ready.push_back(*std::move(command));
      }
    }
    for (const WorkerCommand& worker : ready) {
      failed_.erase(worker.rank);
    }
    start(ready);
  }

  void signalled(int signal) {
    if (outcome_.interrupted_by == 0) {
      outcome_.interrupted_by = signal;
    }
    if (job_goes_on()) {
      stop(signal == SIGPIPE ? SIGTERM : signal);  // SIGPIPE: the launcher's own output was closed
      deadline_ = stopped_ + options_.signal_timeout;
    } else if (phase_ == Phase::kStopping && runner_.now() - stopped_ >= options_.repeat_window) {
      kill();
    }
  }

  void timed_out() {
    if (!deadline_ || runner_.now() < *deadline_) {
      return look_around();
    }
    if (phase_ == Phase::kSuspecting) {
      stop(SIGTERM);
    } else if (phase_ == Phase::kStopping) {
      kill();
    } else if (phase_ == Phase::kKilling) {
      outcome_.left_behind = true;
      phase_ = Phase::kOver;
    }
  }

  void look_around() {
    if (phase_ == Phase::kRunning) {
      start_replacements();
    }
    for (const auto& [rank, time] : std::exchange(quitting_, {})) {
      if (runner_.now() >= time) {
        runner_.send_to(rank, SIGKILL);
      } else {
        quitting_[rank] = time;
      }
    }
    if (job_goes_on() && runner_.now() >= question_) {
      question_ = runner_.now() + options_.monitor_interval;
      ask_group();
    }
  }

  void ask_group() {
    if (options_.stop_wanted && options_.stop_wanted()) {
      outcome_.stopped_by_group = !outcome_.failure;
      if (options_.others_go_on && options_.others_go_on() && !all_gone_) {
        outcome_.stopped_ranks = std::ssize(running_);
        kill();
      } else {
        stop(SIGTERM);
      }
    } else if (options_.replacer != nullptr) {
      end_hanging();
    }
  }

  // A rank that hangs may react to SIGQUIT and print where it waits. One that is stopped cannot, and one without a
  // handler would only write its memory to a file.
  void end_hanging() {
    for (const int64_t rank : options_.replacer->hanging(running_)) {
      if (runner_.handles(rank, SIGQUIT)) {
        runner_.send_to(rank, SIGQUIT);
        quitting_[rank] = runner_.now() + options_.quit_timeout;
      } else {
        runner_.send_to(rank, SIGKILL);
      }
    }
  }

  void stop(int signal) {
    failed_.clear();
    quitting_.clear();
    outcome_.stopped_ranks = std::ssize(running_);
    if (all_gone_) {
      phase_ = Phase::kOver;
      return;
    }
    phase_ = Phase::kStopping;
    stopped_ = runner_.now();
    deadline_ = stopped_ + options_.shutdown_timeout;
    runner_.send(signal);
  }

  void kill() {
    failed_.clear();
    quitting_.clear();
    phase_ = Phase::kKilling;
    outcome_.killed = true;
    deadline_ = runner_.now() + options_.kill_timeout;
    runner_.send(SIGKILL);
  }

  // A rank whose place a new process will take.
  struct Failed {
    WorkerFailure failure;
    Clock::time_point deadline;  // for the end of the processes that it left
  };

  WorkerRunner& runner_;
  const SupervisorOptions options_;
  const Clock::time_point started_;
  Clock::time_point question_;  // time of the next ask_group()
  Phase phase_ = Phase::kRunning;
  Clock::time_point stopped_;  // time of stop()
  std::optional<Clock::time_point> deadline_;
  std::map<int64_t, pid_t> pids_;
  std::set<int64_t> running_;
  std::map<int64_t, Failed> failed_;               // by rank
  std::map<int64_t, Clock::time_point> quitting_;  // ranks that got SIGQUIT because they hang, and when SIGKILL follows
  bool all_gone_ = false;                          // kAllGone came after the last start
  Outcome outcome_;
};

}  // namespace

Outcome supervise(WorkerRunner& runner, const std::vector<WorkerCommand>& workers, const SupervisorOptions& options) {
  Supervisor supervisor(runner, options);
  supervisor.start(workers);
  return supervisor.finish();
}

}  // namespace narrowcast::launcher

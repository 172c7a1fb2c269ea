#include "trainer/launcher/job/supervisor.h"

#include <algorithm>
#include <csignal>
#include <map>

#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

class Supervisor {
 public:
  Supervisor(WorkerRunner& runner, const SupervisorOptions& options)
      : runner_(runner), options_(options), started_(runner.now()) {}

  void start(const std::vector<WorkerCommand>& workers) {
    try {
      for (const WorkerCommand& worker : workers) {
        pids_[worker.rank] = runner_.start(worker);
        ++running_;
      }
    } catch (...) {
      kill();
      finish();
      throw;
    }
  }

  Outcome finish() {
    while (phase_ != Phase::kOver) {
      handle(runner_.wait(wake_up()));
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

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kWorkerEnded:
        return worker_ended(event);
      case Event::Kind::kSignal:
        return signalled(event.signal);
      case Event::Kind::kTimeout:
        return timed_out();
      case Event::Kind::kAllGone:
        phase_ = Phase::kOver;
    }
  }

  // Returns the next deadline, or the time of the next ask_group() if it is earlier.
  std::optional<Clock::time_point> wake_up() {
    if (!options_.stop_wanted || !job_goes_on()) {
      return deadline_;
    }
    const Clock::time_point question = runner_.now() + options_.monitor_interval;
    return deadline_ ? std::min(*deadline_, question) : question;
  }

  bool job_goes_on() const { return phase_ == Phase::kRunning || phase_ == Phase::kSuspecting; }

  void worker_ended(const Event& event) {
    --running_;
    if (job_goes_on() && event.ending.failed()) {
      failed(event);
    } else if (job_goes_on() && options_.succeeded) {
      options_.succeeded(event.rank);
    }
    if (running_ == 0 && phase_ != Phase::kKilling) {
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
    const bool blames_a_peer = event.ending.exit_code == program::kPeerFailed;
    if (!outcome_.failure || !blames_a_peer) {
      const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(runner_.now() - started_);
      outcome_.failure = {event.rank, pids_[event.rank], event.ending, after};
    }
    if (!blames_a_peer) {
      stop(SIGTERM);
    } else if (phase_ == Phase::kRunning) {
      phase_ = Phase::kSuspecting;
      deadline_ = runner_.now() + options_.blame_window;
    }
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
      return ask_group();
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

  void ask_group() {
    if (options_.stop_wanted()) {
      outcome_.stopped_by_group = !outcome_.failure;
      stop(SIGTERM);
    }
  }

  void stop(int signal) {
    phase_ = Phase::kStopping;
    outcome_.stopped_ranks = running_;
    stopped_ = runner_.now();
    deadline_ = stopped_ + options_.shutdown_timeout;
    runner_.send(signal);
  }

  void kill() {
    phase_ = Phase::kKilling;
    outcome_.killed = true;
    deadline_ = runner_.now() + options_.kill_timeout;
    runner_.send(SIGKILL);
  }

  WorkerRunner& runner_;
  const SupervisorOptions options_;
  const Clock::time_point started_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point stopped_;  // time of stop()
  std::optional<Clock::time_point> deadline_;
  std::map<int64_t, pid_t> pids_;
  int64_t running_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome supervise(WorkerRunner& runner, const std::vector<WorkerCommand>& workers, const SupervisorOptions& options) {
  Supervisor supervisor(runner, options);
  supervisor.start(workers);
  return supervisor.finish();
}

}  // namespace narrowcast::launcher

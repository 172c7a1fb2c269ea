// The WorkerRunner that starts real processes.
//
// One thread, one poll: on a descriptor that signals arrive at (SIGCHLD among
// them), and on the workers' pipes. A worker that ended is looked at but not
// reaped until everything is over, so that its id, which names its process group,
// cannot come to mean another process while signals are still sent to it.
#pragma once

#include <csignal>
#include <deque>
#include <string>
#include <vector>

#include "trainer/launcher/posix/child_process.h"
#include "trainer/launcher/posix/output_relay.h"
#include "trainer/launcher/worker_runner.h"

namespace narrowcast::launcher {

// While it exists, signals come to a descriptor and do nothing else: INT, TERM,
// HUP and QUIT, unless the process was told to ignore them, and SIGCHLD. To be made
// before the process has a second thread. SIGPIPE is held back too, so that writing
// to a closed stream is an error and not the end.
class SignalDescriptor {
 public:
  SignalDescriptor();
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  ~SignalDescriptor();

  int get() const { return descriptor_.get(); }
  // A signal that arrived, 0 if none is left.
  int next() const;

 private:
  sigset_t before_;
  Descriptor descriptor_;
};

struct OutputOptions {
  bool prefix = true;  // show workers' lines with their rank; otherwise they write to our streams themselves
};

// Owns every process it starts: none outlives it, nor the launcher (child_process.h).
class ProcessRunner : public WorkerRunner {
 public:
  explicit ProcessRunner(OutputOptions options);
  ProcessRunner(const ProcessRunner&) = delete;
  ProcessRunner& operator=(const ProcessRunner&) = delete;
  ~ProcessRunner() override;

  pid_t start(const WorkerCommand& command) override;
  Event wait(std::optional<Clock::time_point> deadline) override;
  void send(int signal) override;
  Clock::time_point now() const override { return Clock::now(); }

  // The last lines of a rank's standard error that were shown; empty where the
  // launcher did not see them.
  std::vector<std::string> last_error_lines(int64_t rank) const { return relay_.last_error_lines(rank); }

 private:
  struct Worker {
    int64_t rank;
    pid_t pid;
    bool ended = false;
  };

  pid_t start_shown(const WorkerCommand& command);
  pid_t start_logged(const WorkerCommand& command);
  void poll_once(std::optional<Clock::time_point> deadline);
  void take_signals();
  bool look_at_workers();
  void signal_groups(int signal) const;
  std::vector<AdoptedChild> adopted_children() const;
  bool is_worker(pid_t pid) const;
  bool anything_left();
  void reap_workers();

  const OutputOptions options_;
  SignalDescriptor signals_;
  Guard guard_;
  OutputRelay relay_;
  std::vector<Worker> workers_;
  std::deque<Event> events_;
};

}  // namespace narrowcast::launcher

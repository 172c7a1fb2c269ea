// The WorkerRunner that starts real processes.
//
// One thread, one poll: on a descriptor that signals arrive at (SIGCHLD among them), and on the workers' pipes. A
// worker that ended is looked at but not reaped until everything is over, so that its id, which names its process
// group, cannot come to mean another process while signals are still sent to it.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "trainer/launcher/posix/child_process.h"
#include "trainer/launcher/posix/output_relay.h"
#include "trainer/launcher/posix/signal_descriptor.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

struct RunnerOptions {
  bool prefix = true;  // show workers' lines with their rank; otherwise they write to our streams themselves
  std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // to be told of
};

// Owns every process it starts: none outlives it, nor the launcher (child_process.h).
class ProcessRunner : public WorkerRunner {
 public:
  explicit ProcessRunner(const RunnerOptions& options);
  ProcessRunner(const ProcessRunner&) = delete;
  ProcessRunner& operator=(const ProcessRunner&) = delete;
  ~ProcessRunner() override;

  pid_t start(const WorkerCommand& command) override;
  Event wait(std::optional<Clock::time_point> deadline) override;
  void send(int signal) override;
  Clock::time_point now() const override { return Clock::now(); }
  std::vector<std::string> last_error_lines(int64_t rank) const override { return relay_.last_error_lines(rank); }

 private:
  struct Worker {
    int64_t rank;
    pid_t pid;
    bool ended = false;
  };
  // The worker's end of one of its streams, and what the relay reads of it.
  struct Stream {
    files::FileDescriptor workers_end;  // none: the worker writes to our own stream
    OutputRelay::Tap tap;
  };

  void begin_group();
  Stream open_stream(const WorkerCommand& command, OutputRelay::Kind kind);
  void poll_once(std::optional<Clock::time_point> deadline);
  void take_signals();
  bool look_at_workers();
  void signal_groups(int signal) const;
  std::vector<AdoptedChild> adopted_children() const;
  bool is_worker(pid_t pid) const;
  bool anything_left();
  void reap_workers();

  const bool prefix_;
  SignalDescriptor signals_;
  Guard guard_;
  OutputRelay relay_;
  std::vector<Worker> workers_;
  bool group_lives_ = false;  // workers were started, and kAllGone has not been told since
  std::deque<Event> events_;
};

}  // namespace narrowcast::launcher

// The WorkerRunner that starts real processes.
//
// One thread, one poll: on a descriptor that signals arrive at instead of striking (SIGCHLD among them), and on the
// workers' pipes. A worker that ended is looked at but not reaped until everything is over, so that its id, which names
// its process group, cannot come to mean another process while signals are still sent to it.
#pragma once

#include <csignal>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/child_process.h"
#include "trainer/launcher/posix/output_relay.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// The numbers of signals named like "SIGTERM,SIGINT", as torchrun's --signals_to_handle has them. Throws
// c10::ValueError naming `flag` and the name for one that does not exist or that a launcher cannot handle.
std::vector<int> parse_handled_signals(const std::string& flag, const std::string& names);

// While it exists, `handled` signals come to a descriptor and do nothing else, unless the process was told to ignore
// them, and so does SIGCHLD. To be made before the process has a second thread. SIGPIPE is held back too, so that
// writing to a closed stream is an error and not the end.
class SignalDescriptor {
 public:
  explicit SignalDescriptor(const std::vector<int>& handled);
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  ~SignalDescriptor();

  int get() const { return descriptor_.get(); }
  // A signal that arrived, 0 if none is left.
  int next() const;

 private:
  sigset_t before_;
  FileDescriptor descriptor_;
};

struct RunnerOptions {
  bool prefix = true;  // show workers' lines with their prefix; otherwise they write to our streams themselves
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
    FileDescriptor workers_end;  // none: the worker writes to our own stream
    OutputRelay::Tap tap;
  };

  void begin_group();
  std::shared_ptr<FilteredLog> filtered_log(const LineFilter& filter);
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
  std::map<std::filesystem::path, std::shared_ptr<FilteredLog>> filtered_logs_;
  std::vector<Worker> workers_;
  bool group_lives_ = false;  // workers were started, and kAllGone has not been told since
  std::deque<Event> events_;
};

}  // namespace narrowcast::launcher

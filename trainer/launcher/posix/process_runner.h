// The WorkerRunner that starts real processes.
//
// One thread polls the workers' pipes and a descriptor that receives signals, SIGCHLD among them, instead of handlers.
// A worker that ended is not reaped until all workers are gone, or its own process group is gone and it is replaced.
// Its id, which names its process group, therefore cannot be reused while signals are still sent to the group.
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
#include "trainer/launcher/posix/process_list.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// Parses signal names like "SIGTERM,SIGINT", torchrun's --signals_to_handle, into numbers. Throws c10::ValueError
// naming `flag` and the name for a signal that does not exist or that a launcher cannot handle.
std::vector<int> parse_handled_signals(const std::string& flag, const std::string& names);

// During its lifetime, `handled` signals and SIGCHLD arrive at a descriptor and have no other effect. Signals that the
// process was started to ignore stay ignored. SIGPIPE is blocked, so that a write to a closed stream fails instead of
// ending the process. Must be made before the process has a second thread.
class SignalDescriptor {
 public:
  explicit SignalDescriptor(const std::vector<int>& handled);
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  ~SignalDescriptor();

  int get() const { return descriptor_.get(); }
  // Returns the next signal that arrived, 0 if none is left.
  int next() const;

 private:
  sigset_t before_;
  FileDescriptor descriptor_;
};

struct RunnerOptions {
  bool prefix = true;  // show workers' lines with their prefix; otherwise workers write to our streams
  std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // signals that become events
};

// Owns every process it starts. No process outlives this object or the launcher (child_process.h).
class ProcessRunner : public WorkerRunner {
 public:
  explicit ProcessRunner(const RunnerOptions& options);
  ProcessRunner(const ProcessRunner&) = delete;
  ProcessRunner& operator=(const ProcessRunner&) = delete;
  ~ProcessRunner() override;

  pid_t start(const WorkerCommand& command) override;
  Event wait(std::optional<Clock::time_point> deadline) override;
  void send(int signal) override;
  void send_to(int64_t rank, int signal) override;
  bool handles(int64_t rank, int signal) const override;
  bool clear(int64_t rank) override;
  Clock::time_point now() const override { return Clock::now(); }
  std::vector<std::string> last_error_lines(int64_t rank) const override { return relay_.last_error_lines(rank); }

 private:
  struct Worker {
    int64_t rank;
    pid_t pid;
    std::string mark;  // a variable that only this worker and the processes that it started have; empty: none
    bool ended = false;
  };
  // The worker's end of one of its streams, and the relay's part.
  struct Stream {
    FileDescriptor workers_end;  // not open: the worker writes to our stream
    OutputRelay::Tap tap;
  };

  void begin_group();
  std::shared_ptr<FilteredLog> filtered_log(const LineFilter& filter);
  Stream open_stream(const WorkerCommand& command, OutputRelay::Kind kind);
  void poll_once(std::optional<Clock::time_point> deadline);
  void take_signals();
  bool look_at_workers();
  void signal_groups(int signal) const;
  std::vector<ProcessEntry> adopted_children() const;
  bool kill_rest(const Worker& worker) const;
  bool is_worker(pid_t pid) const;
  bool anything_left();
  void reap_workers();

  const bool prefix_;
  SignalDescriptor signals_;
  Guard guard_;
  OutputRelay relay_;
  std::map<std::filesystem::path, std::weak_ptr<FilteredLog>> filtered_logs_;  // open while a stream is copied to them
  std::vector<Worker> workers_;
  bool group_lives_ = false;  // workers were started, and kAllGone was not returned since
  std::deque<Event> events_;
};

}  // namespace narrowcast::launcher

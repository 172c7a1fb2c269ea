// The interface between the launcher's decisions (supervisor.h) and its processes (posix/process_runner.h, or a fake in
// tests).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast::launcher {

using Clock = std::chrono::steady_clock;

// Selects lines of a worker's stream that are copied to a file, which all workers of a node share.
struct LineFilter {
  std::filesystem::path file = {};      // empty: no lines are copied
  std::vector<std::string> texts = {};  // a line that contains one of them is copied
};

// The target of one of a worker's two streams: shown, a file, both, or nothing.
struct StreamTarget {
  bool shown = true;
  std::filesystem::path file = {};  // empty: none
  LineFilter filter = {};           // for a stream that is shown and written to a file
};

// One process to start.
struct WorkerCommand {
  int64_t rank = 0;  // when the node's workers started together; also the name of a process that took its place
  int64_t local_rank = 0;
  std::vector<std::string> arguments = {};  // the program's path first
  EnvironmentVariables environment = {};    // all of it
  std::filesystem::path error_file = {};    // file into which a failing worker may write the reason
  StreamTarget output = {};                 // its standard output
  StreamTarget error = {};                  // its standard error
  std::string prefix = {};                  // before each line that is shown
  std::vector<int64_t> processors = {};     // its processors; empty: the launcher's
  int network = -1;                         // descriptor of its network namespace; -1: the launcher's
};

// The end of a process: by an exit code or by a signal.
struct Ending {
  int exit_code = 0;
  int signal = 0;  // 0: none

  bool failed() const { return exit_code != 0 || signal != 0; }
  // The exit code that shells report: 128 + signal for a process that a signal ended.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
};

struct Event {
  enum class Kind {
    kWorkerEnded,  // `rank`, `ending`
    kSignal,       // `signal` was sent to the launcher
    kAllGone,      // no worker and no process that workers started is left; once per group of workers
    kTimeout,      // the deadline passed
  };
  Kind kind = Kind::kTimeout;
  int64_t rank = 0;
  Ending ending = {};
  int signal = 0;
};

// Starts processes, reports their events, and sends them signals.
class WorkerRunner {
 public:
  virtual ~WorkerRunner() = default;

  // Returns the process's id. Throws c10::ValueError if the program cannot be executed.
  virtual pid_t start(const WorkerCommand& command) = 0;

  // Returns the next event, in the order in which the launcher notices them. Without a deadline it may wait forever.
  // kAllGone comes after every worker's kWorkerEnded. From then until the next start there are only signals and
  // timeouts.
  virtual Event wait(std::optional<Clock::time_point> deadline) = 0;

  // Sends `signal` to all workers and to all processes that they started.
  virtual void send(int signal) = 0;

  // Sends `signal` to one worker that runs, and to the processes of its process group.
  virtual void send_to(int64_t rank, int signal) = 0;

  // Returns whether that worker, or a process of its process group, has a handler for `signal` and is not stopped.
  virtual bool handles(int64_t rank, int signal) const = 0;

  // Kills the processes that a worker left when it ended. Returns whether none is left. The caller repeats the call
  // until then, and may then start another worker of that rank beside the others.
  virtual bool clear(int64_t rank) = 0;

  virtual Clock::time_point now() const = 0;

  // Returns the last lines of a rank's standard error, oldest first; empty if the launcher did not read the stream. The
  // lines are kept until clear() for the rank returns true, or the next group of workers is started.
  virtual std::vector<std::string> last_error_lines(int64_t rank) const = 0;
};

}  // namespace narrowcast::launcher

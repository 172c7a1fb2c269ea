// The seam between what the launcher decides (supervisor.h) and the processes it
// decides about (posix/process_runner.h; a fake in the tests).
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

// Which lines of a worker's stream go to one more file, which all workers of a node share.
struct LineFilter {
  std::filesystem::path file = {};      // empty: no lines are copied
  std::vector<std::string> texts = {};  // a line that holds one of them is copied
};

// Where one of a worker's two streams goes: shown, into a file, both, or nowhere.
struct StreamTarget {
  bool shown = true;
  std::filesystem::path file = {};  // empty: none
  LineFilter filter = {};           // of a stream that is shown and goes to a file: lines that another file gets too
};

// One process to start.
struct WorkerCommand {
  int64_t rank = 0;
  int64_t local_rank = 0;
  std::vector<std::string> arguments = {};  // the program's path first
  EnvironmentVariables environment = {};    // all of it
  std::filesystem::path error_file = {};    // where a failing worker may say why
  StreamTarget output = {};                 // its standard output
  StreamTarget error = {};                  // its standard error
  std::string prefix = {};                  // before each line that is shown
  std::vector<int64_t> processors = {};     // that it may use; empty: those that the launcher may use
  int network = -1;                         // descriptor of the network namespace that it enters; -1: the launcher's
};

// How a process ended: by itself with an exit code, or by a signal.
struct Ending {
  int exit_code = 0;
  int signal = 0;  // 0: none

  bool failed() const { return exit_code != 0 || signal != 0; }
  // As shells have it: 128 + signal for a process that a signal ended.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
};

struct Event {
  enum class Kind {
    kWorkerEnded,  // `rank`, `ending`
    kSignal,       // `signal` was sent to the launcher
    kAllGone,      // no worker is left, nor anything that workers started; once for each group of workers
    kTimeout,      // the deadline passed
  };
  Kind kind = Kind::kTimeout;
  int64_t rank = 0;
  Ending ending = {};
  int signal = 0;
};

// Starts processes, tells what happens to them, and sends them signals.
class WorkerRunner {
 public:
  virtual ~WorkerRunner() = default;

  // Returns the process's id. Throws c10::ValueError if the program cannot be executed.
  virtual pid_t start(const WorkerCommand& command) = 0;

  // The next event, in the order in which the launcher learns of them. Without a deadline it may wait forever. kAllGone
  // comes after every worker's kWorkerEnded; from then until the next start there are only signals and time-outs.
  virtual Event wait(std::optional<Clock::time_point> deadline) = 0;

  // Sends `signal` to all workers that were started and to everything they started.
  virtual void send(int signal) = 0;

  virtual Clock::time_point now() const = 0;

  // The last lines of a rank's standard error, oldest first; empty where the launcher
  // did not see them. They stay until the first worker of another group is started.
  virtual std::vector<std::string> last_error_lines(int64_t rank) const = 0;
};

}  // namespace narrowcast::launcher

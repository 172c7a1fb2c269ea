// The launcher's reaction to each event of its workers. This code has no access to processes.
//
//   running ──── a worker fails ──> stopping: SIGTERM to all ── shutdown_timeout ──> SIGKILL to all
//      │ └────── INT/TERM/HUP/QUIT ──> stopping: that signal to all ── signal_timeout, or a second one ──> SIGKILL
//      ├──────── all workers end ──> stopping: SIGTERM to processes that they left
//      └──────── the group stops the round (another node failed, ...) ──> stopping: SIGTERM to all
//                with recovery in place, if other nodes go on without this one ──> SIGKILL to all
//
// With recovery in place a Replacer decides at each failure, while running, whether a new process takes the rank's
// place. The other workers then live on. First the processes that the failed one left are killed.
//
// When a rank dies, the others lose their peer and fail too, sometimes before the kernel has reported the first. The
// first rank whose end is known is blamed, with one exception. A rank that exits with kPeerFailed blames a peer: a rank
// that fails otherwise within the blame window is then blamed instead. A rank that ends after the launcher began to
// stop the job is never blamed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// A rank that failed.
struct WorkerFailure {
  int64_t rank = 0;
  pid_t pid = 0;
  Ending ending;
  std::chrono::milliseconds after{0};  // since the start of the workers
};

// Recovery in place (recovery.h): decides which ranks get a new process. No call blocks.
class Replacer {
 public:
  virtual ~Replacer() = default;

  // Returns whether a new process takes the place of a rank that failed. Otherwise the failure ends all workers.
  virtual bool replaces(const WorkerFailure& failure) = 0;

  // Returns the command of that process once it may start.
  virtual std::optional<WorkerCommand> replacement(int64_t rank) = 0;

  // Returns which of the `running` ranks hang, each process once. They are ended, and have then failed.
  virtual std::vector<int64_t> hanging(const std::set<int64_t>& running) = 0;
};

// Timeouts of the launcher for its workers.
struct SupervisorOptions {
  std::chrono::milliseconds shutdown_timeout{3000};  // from SIGTERM after a failure to SIGKILL
  std::chrono::milliseconds signal_timeout{30000};   // from a forwarded signal to SIGKILL: time for a checkpoint
  std::chrono::milliseconds blame_window{500};       // how long to wait for the rank that others blame
  std::chrono::milliseconds repeat_window{500};      // signals this close count as one (timeout(1) sends two)
  std::chrono::milliseconds kill_timeout{1000};      // how long SIGKILL may take
  std::function<bool()> stop_wanted = nullptr;       // returns whether the group stops the round; may be null
  // Asked when the group stops it: whether other nodes go on. Then SIGKILL ends the workers: at a SIGTERM they would
  // ask all ranks to stop. Null: they do not.
  std::function<bool()> others_go_on = nullptr;
  std::chrono::milliseconds monitor_interval{100};   // time between two calls of it, and of Replacer::hanging
  std::function<void(int64_t)> succeeded = nullptr;  // called for each rank that ends successfully; may be null
  Replacer* replacer = nullptr;                      // null: any failure ends all workers
  std::chrono::milliseconds start_interval{10};      // time between two calls of Replacer::replacement
  std::chrono::milliseconds quit_timeout{1000};      // from SIGQUIT for a rank that hangs to SIGKILL
};

// How this node's part of a round ended.
struct Outcome {
  std::optional<WorkerFailure> failure;  // the rank to blame, if one failed before the job was stopped
  int interrupted_by = 0;                // the first signal that the launcher received; 0: none
  bool stopped_by_group = false;         // stop_wanted returned true before a failure
  int64_t stopped_ranks = 0;             // ranks that still ran when the job was stopped
  bool killed = false;                   // SIGKILL was needed
  bool left_behind = false;              // a process survived SIGKILL (stuck in the kernel)
};

// Starts all workers and returns when no process of the job is left. Throws what `runner.start` and the functions of
// `options` throw, after ending the workers.
Outcome supervise(WorkerRunner& runner, const std::vector<WorkerCommand>& workers,
                  const SupervisorOptions& options = {});

}  // namespace narrowcast::launcher

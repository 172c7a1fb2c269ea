// What the launcher does about each event; nothing here touches a process.
//
//   running ──── a worker fails ──> stopping: SIGTERM to all ── shutdown_timeout ──> SIGKILL to all
//      │ └────── INT/TERM/HUP/QUIT ──> stopping: that signal to all ── signal_timeout, or a second one ──> SIGKILL
//      ├──────── all workers end ──> stopping: SIGTERM to what they left running
//      └──────── the group wants it (another node's worker failed, ...) ──> stopping: SIGTERM to all
//
// Whose failure is it? When a rank dies, the others lose their peer and fail too, sometimes before the kernel has
// reported the first. The first rank whose end is known is named, unless it exited with kPeerFailed, which says "it was
// not me": then a rank that fails otherwise within the blame window is named instead. What ends after the launcher
// began to stop the job is never blamed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// How patient the launcher is with its workers.
struct SupervisorOptions {
  std::chrono::milliseconds shutdown_timeout{3000};  // from SIGTERM after a failure to SIGKILL
  std::chrono::milliseconds signal_timeout{30000};  // from a signal that is passed on to SIGKILL: time for a checkpoint
  std::chrono::milliseconds blame_window{500};      // how long to wait for the rank that others blame
  std::chrono::milliseconds repeat_window{500};     // signals this close count as one (timeout(1) sends two)
  std::chrono::milliseconds kill_timeout{1000};     // how long SIGKILL may take
  std::function<bool()> stop_wanted = nullptr;      // whether the group wants this node's workers to end; may be none
  std::chrono::milliseconds monitor_interval{100};  // how often that is asked
  std::function<void(int64_t)> succeeded = nullptr;  // is told of each rank that ends well, by itself; may be none
};

// The rank of this node that failed first.
struct WorkerFailure {
  int64_t rank = 0;
  pid_t pid = 0;
  Ending ending;
  std::chrono::milliseconds after{0};  // since the start of the workers
};

// How this node's part of a round ended.
struct Outcome {
  std::optional<WorkerFailure> failure;  // the rank to blame, if one failed before the job was stopped
  int interrupted_by = 0;                // the first signal that the launcher was sent, 0 if none was
  bool stopped_by_group = false;         // stop_wanted said so first
  int64_t stopped_ranks = 0;             // how many ranks were still running when the job was stopped
  bool killed = false;                   // SIGKILL was needed
  bool left_behind = false;              // not even SIGKILL ended everything (a process stuck in the kernel)
};

// Starts all workers and returns when nothing of the job is left. Throws what
// `runner.start` throws, after ending the workers already started.
Outcome supervise(WorkerRunner& runner, const std::vector<WorkerCommand>& workers,
                  const SupervisorOptions& options = {});

}  // namespace narrowcast::launcher

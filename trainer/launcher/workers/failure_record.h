// How a job or one of its rounds ended, as launchers tell each other and their users.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/workers/worker_runner.h"

namespace narrowcast::launcher {

// The rank of a node that failed first.
struct FailureRecord {
  int64_t rank = 0;
  int64_t pid = 0;
  std::string node;  // "node 1 (host-b)"; empty where there is only one
  Ending ending;
  int64_t time_ms = 0;                       // since 1970, by the node's clock
  std::chrono::milliseconds after{0};        // since its round began
  std::string message = {};                  // what the worker wrote to its error file
  std::string log_file = {};                 // that has its standard error; empty: none
  std::vector<std::string> last_lines = {};  // of its standard error
};

// How the workers of one node ended in a round.
struct NodeReport {
  enum class End {
    kSucceeded,
    kFailed,       // `failure`
    kStopped,      // because the group wanted it
    kInterrupted,  // by `signal`
    kRefused,      // could not be started: `text`
  };
  End end = End::kSucceeded;
  std::optional<FailureRecord> failure = {};
  int signal = 0;  // that the launcher was sent, also after a failure; 0 if none. It starts nothing after it.
  std::string text = {};
  int64_t stopped_ranks = 0;  // how many of the node's ranks still ran when they were stopped
  bool killed = false;        // SIGKILL was needed
  bool left_behind = false;   // not even that ended all
};

// The report with its texts cut to kLongestText (last_lines.h) and its lines to kMostLines: as launchers tell each
// other.
NodeReport bounded(NodeReport report);

// Bytes of a bounded report as JSON, where a byte of a text takes up to six, at most: what c10d's store takes at once,
// 8 MiB, is far more, also for what the host makes of the reports.
constexpr size_t kLargestReport = size_t{512} << 10;

// Why a round of the whole group ended.
struct GroupEnd {
  enum class Cause {
    kSucceeded,
    kFailed,       // `failure`
    kInterrupted,  // `signal`
    kMembership,   // nodes came or went: `text`
    kAborted,      // `text`, with `code`
  };
  Cause cause = Cause::kSucceeded;
  std::optional<FailureRecord> failure = {};
  int signal = 0;
  std::string text = {};  // also on which node a signal arrived; empty where there is only one
  int code = 0;
  int64_t stopped_ranks = 0;
  bool killed = false;
  bool left_behind = false;

  // The launcher's exit code if the job ends so: 0, the failed rank's, 128 + signal, or `code`.
  int exit_code() const;
};

}  // namespace narrowcast::launcher

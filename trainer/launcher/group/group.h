// What the launchers of a job tell each other and agree on: how a node's workers ended, who takes part, what the group
// is to do. They write it into the store as JSON.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// The rank that failed first, on a node or in the group.
struct FailureRecord {
  int64_t rank = 0;
  int64_t pid = 0;
  std::string node;  // "node 1 (host-b)"; empty where there is only one
  Ending ending;
  int64_t time_ms = 0;                       // since 1970, by the node's clock
  std::chrono::milliseconds after{0};        // since its round began
  std::string message = {};                  // what the worker wrote to its error file
  bool is_final = false;                     // the worker says that it would fail alike if it were started again
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
  int signal = 0;         // that the launcher was sent, also after a failure; 0 if none. It starts nothing after it.
  std::string text = {};  // why it was refused
  int64_t stopped_ranks = 0;  // how many of the node's ranks still ran when they were stopped
  bool killed = false;        // SIGKILL was needed
  bool left_behind = false;   // not even that ended all
};

// The report with its texts cut to kLongestText (last_lines.h) and its lines to kMostLines: as launchers tell each
// other.
NodeReport bounded(NodeReport report);

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
  std::optional<FailureRecord> before = {};  // the failure that the last restart was to mend, where it failed at once
  int signal = 0;
  std::string text = {};  // also on which node a signal arrived, empty where there is only one; why there is no restart
  int code = 0;
  int64_t stopped_ranks = 0;  // this and what follows: of all nodes, as in NodeReport
  bool killed = false;
  bool left_behind = false;

  // Of kFailed: the failure to report to others, `before` if there is one.
  const FailureRecord& root() const { return before ? *before : *failure; }

  // The launcher's exit code if the job ends so: 0, that of the rank in root(), 128 + signal, or `code`.
  int exit_code() const;
};

// How a job on one node, or a node's part of it, ended by its own report.
GroupEnd end_of_report(const NodeReport& report);

// How several nodes meet, as --rdzv_backend says it and launchers tell each other: each has its --node_rank, or they
// come and go, and ranks are assigned.
inline constexpr const char* kStaticBackend = "static";
inline constexpr const char* kElasticBackend = "c10d";

// As many as a job may have, of each; what exceeds it no launcher of ours has written.
inline constexpr int64_t kMostLaunchers = 65'536;
inline constexpr int64_t kMostWorkersOfANode = 65'536;

// Bytes of the longest --rdzv_id and other names.
inline constexpr int64_t kLongestName = 255;

// What all launchers of a job must have been told alike.
struct GroupSettings {
  std::string backend = kStaticBackend;  // or kElasticBackend
  int64_t min_nodes = 1;
  int64_t max_nodes = 1;
  int64_t max_restarts = 0;
  std::string rdzv_id = {};  // empty: none was given

  bool operator==(const GroupSettings&) const = default;
};

// One launcher, by its own account.
struct NodeDescription {
  std::string host = {};
  int64_t pid = 0;
  int64_t nproc = 1;
  int64_t node_rank = 0;  // as given; with c10d nobody asks
  std::string role = "default";
  GroupSettings settings = {};
};

// How a node's workers ended in a round.
struct RoundReport {
  int64_t round = -1;  // -1: before the first
  NodeReport report = {};
};

// What is seen of a launcher.
struct NodeView {
  int64_t ticket = 0;  // its number in the order of arrival, from 1
  NodeDescription node = {};
  int64_t beats = 0;    // grows as long as it lives
  int64_t spoiled = 0;  // how many looks found its sign of life overwritten or removed
  std::optional<RoundReport> report = {};
  bool left = false;            // it has seen the end of the job
  std::string unreadable = {};  // why what it wrote cannot be read; empty if it can
};

// A node's place in a round.
struct Member {
  int64_t ticket = 0;
  std::string name = {};  // "node 1 (beta)"
  int64_t nproc = 1;
  std::string role = {};
};

// What the group is to do.
struct Decision {
  enum class Phase { kForming, kRunning, kStopping, kOver };
  Phase phase = Phase::kForming;
  int64_t round = 0;
  std::string run_id = {};
  std::vector<Member> members = {};          // of the round, by node rank; empty before the first
  std::optional<GroupEnd> end = {};          // of the round before; if the job is over, of the job
  std::string note = {};                     // what the group waits for
  std::map<int64_t, GroupEnd> evicted = {};  // launchers, by ticket, that have no part in the job, and why
};

// "beta (pid 4321)"
std::string name_of(const NodeDescription& node);

// The first setting in which two launchers differ, with both values, for users; empty if there is none.
std::string difference(const NodeDescription& one, const NodeDescription& other);

// As JSON. Texts that are no UTF-8 lose the bad bytes.
std::string to_text(const NodeDescription& node);
std::string to_text(const RoundReport& report);
std::string to_text(const Decision& decision);

// Throw CorruptInputError, saying what is wrong, for a text that is none: also for values that no launcher writes, as
// numbers out of their ranges, or a failure without what failed.
NodeDescription parse_node(const std::string& text);
RoundReport parse_report(const std::string& text);
Decision parse_decision(const std::string& text);

}  // namespace narrowcast::launcher

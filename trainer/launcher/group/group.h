// The messages of a job's launchers: how a node's workers ended, which nodes take part, and the group's next step. They
// are JSON texts in the store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/base/network/places.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// The rank that failed first, on a node or in the group.
struct FailureRecord {
  int64_t rank = 0;
  int64_t pid = 0;
  std::string node;  // "node 1 (host-b)"; empty if the job has one node
  Ending ending;
  int64_t time_ms = 0;                       // since 1970, by the node's clock
  std::chrono::milliseconds after{0};        // since the start of its round
  std::string message = {};                  // the error in the worker's error file
  bool is_final = false;                     // by its error file, a restarted worker would fail again
  bool is_misfit = false;                    // by its error file, the other ranks can go on without its node
  std::string log_file = {};                 // file with its standard error; empty: none
  std::vector<std::string> last_lines = {};  // last lines of its standard error
};

// How the workers of one node ended in a round.
struct NodeReport {
  enum class End {
    kSucceeded,
    kFailed,       // `failure`
    kStopped,      // the group ended the round
    kInterrupted,  // by `signal`
    kRefused,      // a worker could not be started: see `text`
  };
  End end = End::kSucceeded;
  std::optional<FailureRecord> failure = {};
  std::optional<FailureRecord> before = {};  // the earlier failure, if a recovery in place ended in a final failure
  int signal = 0;  // sent to the launcher, also after a failure; 0: none. A signalled launcher starts no workers.
  std::string text = {};      // reason for kRefused
  int64_t stopped_ranks = 0;  // the node's ranks that still ran when they were stopped
  bool killed = false;        // SIGKILL was needed
  bool left_behind = false;   // some processes survived SIGKILL
  bool used_up = false;       // the node has recovered in place as often as it may: nothing starts again
};

// Returns the report with its texts cut to kLongestText (last_lines.h) and its last lines to kMostLines. Launchers send
// reports in this form.
NodeReport bounded(NodeReport report);

// Why a round of the whole group ended.
struct GroupEnd {
  enum class Cause {
    kSucceeded,
    kFailed,       // `failure`
    kInterrupted,  // `signal`
    kMembership,   // nodes came or left: see `text`
    kAborted,      // `text`, with `code`
  };
  Cause cause = Cause::kSucceeded;
  std::optional<FailureRecord> failure = {};
  std::optional<FailureRecord> before = {};  // the earlier failure, if a restart ended in a final failure
  int signal = 0;
  // An explanation. For kInterrupted: the node's name, if there are several. For kFailed: why there is no restart.
  std::string text = {};
  int code = 0;
  int64_t stopped_ranks = 0;  // sum over all nodes; the next two hold if they hold for any node
  bool killed = false;
  bool left_behind = false;

  // For kFailed: the failure that determines the exit code and the error file. It is `before` if there is one, else
  // `failure`.
  const FailureRecord& root() const { return before ? *before : *failure; }

  // The launcher's exit code for this end of the job: 0, root()'s exit code, 128 + signal, or `code`.
  int exit_code() const;
};

// Translates a node's report into the end of a job on that node alone.
GroupEnd end_of_report(const NodeReport& report);

// Values of --rdzv_backend, also used between launchers. With static each node has its --node_rank. With c10d nodes
// come and go, and ranks are assigned.
inline constexpr const char* kStaticBackend = "static";
inline constexpr const char* kElasticBackend = "c10d";

// Upper limits for one job. Launchers reject messages with larger numbers.
inline constexpr int64_t kMostLaunchers = 65'536;
inline constexpr int64_t kMostWorkersOfANode = 65'536;

// Places of one job, Decision::places, and launchers in Decision::spares.
inline constexpr int64_t kMostPlaces = 8;
inline constexpr int64_t kMostSpares = 64;

// Longest --rdzv_id or other name, in bytes.
inline constexpr int64_t kLongestName = 255;

// Settings that must be equal in all launchers of a job.
struct GroupSettings {
  std::string backend = kStaticBackend;  // or kElasticBackend
  int64_t min_nodes = 1;
  int64_t max_nodes = 1;
  int64_t max_restarts = 0;
  std::string rdzv_id = {};  // empty: not given
  bool in_place = false;     // workers recover in place

  bool operator==(const GroupSettings&) const = default;
};

// Names the members of a round after a change, as Decision::round and changes do.
struct Change {
  int64_t round = -1;
  int64_t changes = 0;

  bool operator==(const Change&) const = default;
};

// What a launcher that has lost the host knows of the round. The next host may know an older decision.
struct LastKnown {
  Change change = {};
  int64_t losses = 0;                 // Decision::losses
  std::vector<int64_t> members = {};  // tickets
  std::vector<int64_t> met = {};      // of these, the ones whose ranks have met the others
  int64_t starts = 0;                 // the largest number of a start (worker_entries.h)

  bool operator==(const LastKnown&) const = default;
};

// A launcher's description of itself.
struct NodeDescription {
  std::string host = {};
  int64_t pid = 0;
  int64_t nproc = 1;
  int64_t node_rank = 0;  // --node_rank; ignored with c10d
  std::string role = "default";
  // With recovery in place: "HOST:PORT", where this launcher serves the store if it takes over (succession.h). Empty:
  // it cannot take over.
  std::string standby = {};
  LastKnown known = {};
  GroupSettings settings = {};
};

// How a node's workers ended in a round.
struct RoundReport {
  int64_t round = -1;  // -1: before the first round
  NodeReport report = {};
};

// The host's view of a launcher.
struct NodeView {
  int64_t ticket = 0;  // number in the order of arrival, from 1
  NodeDescription node = {};
  int64_t beats = 0;    // heartbeat counter; grows as long as the launcher lives
  int64_t spoiled = 0;  // reads that found its heartbeat overwritten or removed
  std::optional<RoundReport> report = {};
  bool left = false;            // it has seen the end of the job
  std::string unreadable = {};  // why its entries cannot be read; empty if they can
  std::string absent = {};      // why it does not take part although it is a member; empty if it does
  Change known = {};            // the last change of the members that the launcher knows of
  rendezvous::Progress progress = rendezvous::Progress::kStart;  // of the ranks of a newcomer
};

// A node's place in a round.
struct Member {
  int64_t ticket = 0;
  std::string name = {};  // "node 1 (beta)"
  int64_t nproc = 1;
  std::string role = {};
  std::string standby = {};  // NodeDescription::standby
  bool is_new = false;       // it joined a round that ran, and its ranks have not met the others
};

// The group's next step.
struct Decision {
  enum class Phase { kForming, kRunning, kStopping, kOver };
  Phase phase = Phase::kForming;
  int64_t round = 0;
  std::string run_id = {};
  std::vector<Member> members = {};  // members of the round, by node rank; empty before the first round
  // Recovery in place: how often the members have changed during the round, how often some were lost, and why that
  // happened last, for users. After a loss the members stay the same until there are enough others.
  int64_t changes = 0;
  int64_t losses = 0;
  std::string change = {};
  // Whether members may change now. Only then another launcher takes over if the host is lost (succession.h).
  bool changes_in_place = false;
  std::vector<int64_t> spares = {};  // tickets of launchers that wait for a place: the first kMostSpares
  int64_t host = 1;                  // ticket of the host
  std::string store = {};            // "HOST:PORT" of the store if a launcher took over; empty: where launchers met
  // "HOST:PORT" of the places to which launchers may come because they were told so, or are started again: first where
  // all were to meet, then the stores of launchers that took over.
  std::vector<std::string> places = {};
  std::optional<GroupEnd> end = {};          // end of the previous round; in kOver, end of the job
  std::string note = {};                     // text for users: what the group waits for
  std::map<int64_t, GroupEnd> evicted = {};  // by ticket: launchers that were turned away, and why
};

// "beta (pid 4321)"
std::string name_of(const NodeDescription& node);

// Describes the first setting in which two launchers differ, with both values, for users. Empty if all are equal.
std::string difference(const NodeDescription& one, const NodeDescription& other);

// The values as JSON. Bytes that are not valid UTF-8 are replaced.
std::string to_text(const NodeDescription& node);
std::string to_text(const RoundReport& report);
std::string to_text(const Decision& decision);

// Throw CorruptInputError with the reason if the text cannot be parsed or has a value that no launcher writes: a number
// out of its range, or a failed end without its failure.
NodeDescription parse_node(const std::string& text);
RoundReport parse_report(const std::string& text);
Decision parse_decision(const std::string& text);

}  // namespace narrowcast::launcher

// Decides how a job continues after a round, and describes the result to users.
//
// The failure to report is, in this order:
//   1. the earliest failure, by the nodes' clocks, that does not blame a peer (exit code kPeerFailed);
//   2. a lost node, because ranks of other nodes fail with kPeerFailed when a node is lost;
//   3. the earliest failure that blames a peer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

// A member, and the end of its part of a round.
struct MemberResult {
  Member member;
  std::optional<NodeReport> report;  // empty: the node was lost
};

// The other inputs of a verdict.
struct RoundRules {
  bool elastic = false;          // the job survives nodes that leave,
  int64_t host_ticket = 1;       // except the host, which has this ticket
  bool survives_losses = false;  // the job survives nodes that are lost
  std::string lost_because;      // e.g. "no heartbeat for 10 s"
  std::string newcomer = {};     // the node for which the round was stopped; empty: none
};

// The decision about the job after a round.
struct Verdict {
  enum class Kind {
    kOver,            // the job ends with `end`
    kCountedRestart,  // another round if --max_restarts allows it, else as kOver
    kRestart,         // another round
  };
  Kind kind = Kind::kOver;
  GroupEnd end;
};

// Decides from the results of all members of the round.
Verdict judge(const std::vector<MemberResult>& results, const RoundRules& rules);

// "exit code 7" or "signal SIGKILL (Killed)".
std::string describe(const Ending& ending);

// Returns the lines to print about a rank whose place a new process takes. `limit` says how often that may happen.
std::vector<std::string> describe_replacement(FailureRecord failure, const std::string& limit);

// Returns the lines to print about an end; the first line is the summary. Success usually has no lines.
std::vector<std::string> describe_end(const GroupEnd& end);

}  // namespace narrowcast::launcher

// What follows from how the members of a round ended, and what users are told of it.
//
// Whose failure was it? The earliest one, by the nodes' clocks, that does not blame a peer (exit code kPeerFailed); a
// node that was lost comes next, since it makes the ranks of others fail in that way; then the earliest that blames
// one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

// How one node's part of a round ended.
struct MemberResult {
  Member member;
  std::optional<NodeReport> report;  // none: the node was lost
};

// What decides besides.
struct RoundRules {
  bool elastic = false;       // the job survives nodes that leave or are lost
  int64_t host_ticket = 1;    // but not this one, which serves the store
  std::string lost_because;   // e.g. "no sign of life for 10 s"
  std::string newcomer = {};  // for whom the round was stopped, if for anybody
};

// What becomes of the job after a round.
struct Verdict {
  enum class Kind {
    kOver,            // the job ends so
    kCountedRestart,  // another round if --max_restarts allows it, else the job ends so
    kRestart,         // another round
  };
  Kind kind = Kind::kOver;
  GroupEnd end;
};

// Decides it from the results of all members of the round.
Verdict judge(const std::vector<MemberResult>& results, const RoundRules& rules);

// "exit code 7" or "signal SIGKILL (Killed)".
std::string describe(const Ending& ending);

// The lines to print about an end; the first one says it all. None for success.
std::vector<std::string> describe_end(const GroupEnd& end);

}  // namespace narrowcast::launcher

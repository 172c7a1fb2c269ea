// What launchers of several nodes know of each other, and what they agree on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launcher/workers/failure_record.h"

namespace narrowcast::launcher {

// What all launchers of a job must have been told alike.
struct GroupSettings {
  std::string backend = "static";  // or "c10d"
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
  int64_t beats = 0;  // grows as long as it lives
  std::optional<RoundReport> report = {};
  bool left = false;  // it has seen the end of the job
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
  std::vector<Member> members = {};              // of the round, by node rank; empty before the first
  std::optional<GroupEnd> end = {};              // of the round before; if the job is over, of the job
  std::string note = {};                         // what the group waits for
  std::map<int64_t, GroupEnd> turned_away = {};  // launchers, by ticket, that have no part in the job, and why
};

// "beta (pid 4321)"
std::string name_of(const NodeDescription& node);

// The first setting in which two launchers differ, with both values, for users; empty if there is none.
std::string difference(const NodeDescription& one, const NodeDescription& other);

}  // namespace narrowcast::launcher

// Recovery in place on several nodes: which ranks each node has. That changes while ranks run, when a node is lost or
// another one joins.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/worker_env.h>

namespace narrowcast::rendezvous {

// How far the ranks of a node that joins have come. narrowcast-run decides it by the entries of the ranks, and tells
// the others by kPlaces. The other ranks meet and work without a node whose ranks start, unless they are too few.
//
//   the ranks   entries                              kPlaces has the node   the end of a process is a loss for others
//   start       -                                    after the others       no
//   are ready   ready_key of all of them             among the others       if rank 0 has begun to wait for them
//   have met    met_key: one of them met the others  among the others       yes
//
// If the process of a rank ends before the ranks have met, they start again. Nodes that were there when the ranks were
// last started together have met.
enum class Progress { kStart, kReady, kMet };

// The key of the places, below job_prefix(). narrowcast-run writes it before the ranks start together, and at each
// change. If ranks of a node that is gone have met the others, or too few nodes are left, it then also adds 1 to
// kStarts. A job on one node does not have the key.
inline constexpr const char* kPlaces = "places";

// The key by which a rank tells that all ranks can form a new group when nodes are lost or join, below job_prefix().
// Without it, narrowcast-run starts all ranks again. With the value kWhenReady, ranks have a ready_key; with another
// one all count as ready.
inline constexpr const char* kRegroups = "regroups";
inline constexpr const char* kWhenReady = "ready";

// The key by which a rank tells, before kRegroups, that their training cannot take in newcomers: it would lose its
// state. Then nodes that come wait until one is lost. Below job_prefix().
inline constexpr const char* kKeepsNewcomersOut = "keeps_newcomers_out";

// The key by which a rank tells, before kRegroups, a number that the number of ranks must divide: a training could not
// share its batch otherwise. Nodes that come then wait until the ranks of all that join at once make such a number.
// Below job_prefix(). Without it, any number of ranks works.
inline constexpr const char* kRanksDivide = "ranks_divide";

// The key of the time without heartbeats after which the launchers take a node for lost, in milliseconds, below
// job_prefix(). Written with kPlaces. It tells ranks how long the news of a loss may take.
inline constexpr const char* kNodeSilence = "node_silence";
inline constexpr std::chrono::milliseconds kDefaultNodeSilence{10000};

// The environment variable of workers on nodes that may change: "NODE/RANK", where NODE is NodeRanks::node, and RANK is
// the worker's number among its ranks, from 0.
inline constexpr const char* kNodeVariable = "NARROWCAST_NODE";

// The environment variable of the same workers: the path of the file that tells where the store is served
// (store_file.h).
inline constexpr const char* kStoreFileVariable = "NARROWCAST_STORE_FILE";

// The key by which the ranks of a node tell that they have met the others, below job_prefix(). `node` is
// NodeRanks::node.
inline std::string met_key(int64_t node) { return "met/" + std::to_string(node); }

// Ranks meet that have read the same value of kStarts and know the same number of changes.
inline std::string epoch_of(int64_t starts, int64_t changes) {
  return std::to_string(starts) + "/" + std::to_string(changes);
}

// The key of the newest attempt to meet in an epoch, below job_prefix(). Rank 0 writes it, and waits for the others.
inline std::string attempt_key(const std::string& epoch) { return "attempt/" + epoch; }

// A rank, by its node (NodeRanks::node; 0: nodes do not change) and its number among the node's ranks. Both stay the
// same when ranks are numbered anew.
struct RankOfNode {
  int64_t node = 0;
  int64_t rank_on_node = 0;

  auto operator<=>(const RankOfNode&) const = default;
};

// A node and its number of ranks.
struct NodeRanks {
  int64_t node = 0;  // names the node as long as the job lasts; from 1
  int64_t ranks = 1;

  bool operator==(const NodeRanks&) const = default;
};

// The nodes in the order of their ranks.
struct Places {
  int64_t changes = 0;                   // of `nodes`, since the ranks were last started together
  std::vector<NodeRanks> nodes = {};     // whose ranks meet
  std::vector<NodeRanks> starting = {};  // whose ranks start: the others do not wait for them

  bool operator==(const Places&) const = default;

  // The number of all ranks.
  int64_t world_size() const;
  // The first rank of that node. Empty if the node has no place.
  std::optional<int64_t> first_rank(int64_t node) const;
};

// Whether no other process is, or will be, in the job.
inline bool is_alone(const WorkerEnv& env) { return env.world_size == 1 && env.node == 0; }

// The places as text, e.g. "2 1:4,3:4 5:1": after two changes, nodes 1 and 3 have 4 ranks each, and node 5 starts one.
std::string to_text(const Places& places);

// Parses that text. Throws CorruptInputError for a text that to_text does not write, and for a world that no job has.
Places parse_places(const std::string& text);

// A rank as text: "NODE/RANK".
std::string to_text(const RankOfNode& rank);

// Parses that text; empty if it is another one.
std::optional<RankOfNode> parse_rank(std::string_view text);

}  // namespace narrowcast::rendezvous

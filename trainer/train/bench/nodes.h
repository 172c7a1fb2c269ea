// Which ranks share a node: what they send over one network interface.
#pragma once

#include <cstdint>
#include <vector>

#include <narrowcast/process_group.h>

namespace narrowcast::bench {

// A collective: the number of each rank's node, by rank, the same on all ranks. Nodes are numbered from 0 in the order
// of their lowest ranks. A node is what the launcher says: as many ranks in a row as LOCAL_WORLD_SIZE. Throws
// c10::ValueError as nodes_in_a_row, and c10::DistBackendError if a peer fails.
std::vector<int64_t> nodes_by_rank(const ProcessGroupPtr& group, const WorkerEnv& env);

// The same from every rank's LOCAL_WORLD_SIZE, by rank. Throws c10::ValueError naming the rank that does not fit where
// these do not part the ranks into nodes.
std::vector<int64_t> nodes_in_a_row(const std::vector<int64_t>& local_world_sizes);

// The number of ranks of each node, by node.
std::vector<int64_t> ranks_per_node(const std::vector<int64_t>& nodes_by_rank);

}  // namespace narrowcast::bench

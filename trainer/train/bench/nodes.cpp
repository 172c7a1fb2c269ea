#include "trainer/train/bench/nodes.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include <narrowcast/consensus.h>

namespace narrowcast::bench {

std::vector<int64_t> nodes_by_rank(const ProcessGroupPtr& group, const WorkerEnv& env) {
  std::vector<double> sizes(static_cast<size_t>(group->getSize()));
  sizes[static_cast<size_t>(group->getRank())] = static_cast<double>(env.local_world_size);
  sizes = all_reduce_sum(group, sizes);
  return nodes_in_a_row({sizes.begin(), sizes.end()});
}

std::vector<int64_t> nodes_in_a_row(const std::vector<int64_t>& local_world_sizes) {
  std::vector<int64_t> nodes;
  size_t first = 0;  // rank of the node at hand
  for (size_t rank = 0; rank < local_world_sizes.size(); ++rank) {
    const int64_t size = local_world_sizes[rank];
    const bool begins = rank == first + static_cast<size_t>(local_world_sizes[first]) || rank == 0;
    first = begins ? rank : first;
    TORCH_CHECK_VALUE(size == local_world_sizes[first], "LOCAL_WORLD_SIZE: rank ", rank, " has ", size, ", but rank ",
                      first, ", of the same node, ", local_world_sizes[first]);
    TORCH_CHECK_VALUE(size >= 1 && first + static_cast<size_t>(size) <= local_world_sizes.size(),
                      "LOCAL_WORLD_SIZE: rank ", rank, " has ", size, ", but there are only ", local_world_sizes.size(),
                      " ranks");
    nodes.push_back(rank == 0 ? 0 : nodes.back() + (begins ? 1 : 0));
  }
  return nodes;
}

std::vector<int64_t> ranks_per_node(const std::vector<int64_t>& nodes_by_rank) {
  std::vector<int64_t> ranks;
  for (const int64_t node : nodes_by_rank) {
    ranks.resize(std::max(ranks.size(), static_cast<size_t>(node) + 1));
    ++ranks[static_cast<size_t>(node)];
  }
  return ranks;
}

}  // namespace narrowcast::bench

// Chooses the nodes that join, among those that wait, for work that not every number of ranks can share.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace narrowcast::launcher {

struct WaitingNode {
  int64_t ticket = 0;
  int64_t ranks = 1;
};

// The nodes that work already.
struct WorkingNodes {
  int64_t ranks = 0;         // of all of them
  int64_t ranks_divide = 0;  // a number that the number of all ranks must divide; 0: any number of ranks works
  int64_t missing = 0;       // so many nodes must join; 0 or less: none
};

// The tickets of the nodes that join now: those that make the largest number of ranks that fits, with as many nodes as
// possible and earlier ones first. If no number fits, all join that must not be missing, else none. If not all fit,
// only the first 32 nodes are considered.
std::set<int64_t> nodes_that_fit(const std::vector<WaitingNode>& waiting, const WorkingNodes& working);

}  // namespace narrowcast::launcher

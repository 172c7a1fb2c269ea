#include "trainer/launcher/group/fitting_nodes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>

namespace narrowcast::launcher {
namespace {

constexpr int64_t kMostConsidered = 32;  // The host looks ten times a second.

using Tickets = std::vector<int64_t>;

// For each sum of ranks, the most nodes that have it together.
std::map<int64_t, Tickets> nodes_by_sum(const std::vector<WaitingNode>& waiting, int64_t most_ranks) {
  std::map<int64_t, Tickets> by_sum = {{0, {}}};
  for (const WaitingNode& node : waiting | std::views::take(kMostConsidered)) {
    std::map<int64_t, Tickets> with_node;
    for (const auto& [sum, tickets] : by_sum) {
      if (sum + node.ranks <= most_ranks) {
        with_node[sum + node.ranks] = tickets;
        with_node[sum + node.ranks].push_back(node.ticket);
      }
    }
    for (auto& [sum, tickets] : with_node) {
      Tickets& known = by_sum[sum];
      if (tickets.size() > known.size()) known = std::move(tickets);
    }
  }
  return by_sum;
}

}  // namespace

std::set<int64_t> nodes_that_fit(const std::vector<WaitingNode>& waiting, const WorkingNodes& working) {
  const auto fits = [&](int64_t ranks) { return ranks > 0 && working.ranks_divide % ranks == 0; };
  std::set<int64_t> all;
  int64_t ranks = working.ranks;
  for (const WaitingNode& node : waiting) {
    all.insert(node.ticket);
    ranks += node.ranks;
  }
  if (working.ranks_divide == 0 || fits(ranks)) {
    return all;
  }
  for (const auto& [sum, tickets] : nodes_by_sum(waiting, working.ranks_divide - working.ranks) | std::views::reverse) {
    if (fits(working.ranks + sum) && std::ssize(tickets) >= working.missing) {
      return {tickets.begin(), tickets.end()};
    }
  }
  return working.missing > 0 ? all : std::set<int64_t>();
}

}  // namespace narrowcast::launcher

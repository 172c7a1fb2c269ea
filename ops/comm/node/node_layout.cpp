#include "ops/comm/node/node_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

namespace narrowcast::node {

NodeLayout::NodeLayout(const std::vector<int64_t>& node_of_rank) {
  TORCH_CHECK_VALUE(!node_of_rank.empty(), "node_of_rank must not be empty");
  std::map<int64_t, int64_t> numbers;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto [number, is_new] = numbers.emplace(node_of_rank[rank], nodes());
    if (is_new) {
      ranks_.emplace_back();
    }
    node_of_rank_.push_back(number->second);
    ranks_[number->second].push_back(static_cast<int64_t>(rank));
  }
  const auto smallest =
      std::min_element(ranks_.begin(), ranks_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  segments_ = static_cast<int64_t>(smallest->size());
}

NodeLayout NodeLayout::of_size(int64_t world_size, int64_t node_size) {
  TORCH_CHECK_VALUE(node_size >= 1, "node_size: must be at least 1, but is ", node_size);
  std::vector<int64_t> node_of_rank;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    node_of_rank.push_back(rank / node_size);
  }
  return NodeLayout(node_of_rank);
}

int64_t NodeLayout::local_rank_of(int64_t rank) const {
  const std::vector<int64_t>& local = ranks_of(node_of(rank));
  return std::lower_bound(local.begin(), local.end(), rank) - local.begin();
}

std::vector<int64_t> NodeLayout::owners_of(int64_t segment) const {
  std::vector<int64_t> owners;
  for (const std::vector<int64_t>& local : ranks_) {
    owners.push_back(local.at(segment));
  }
  return owners;
}

std::string NodeLayout::text() const {
  const auto differs = [&](const std::vector<int64_t>& local) { return local.size() != ranks_[0].size(); };
  if (std::none_of(ranks_.begin(), ranks_.end(), differs)) {
    return std::to_string(nodes()) + " x " + std::to_string(ranks_[0].size());
  }
  std::string sizes;
  for (const std::vector<int64_t>& local : ranks_) {
    sizes += (sizes.empty() ? "" : " + ") + std::to_string(local.size());
  }
  return sizes;
}

}  // namespace narrowcast::node

#include "trainer/ddp/quorum/local_group.h"

#include <ATen/ops/full.h>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"

namespace narrowcast {

LocalGroup::LocalGroup(const ProcessGroupPtr& all, const std::vector<int64_t>& groups)
    : rank_(all->getRank()),
      groups_(groups.empty() ? node::NodeLayout::flat(all->getSize()) : node::NodeLayout(groups)) {
  if (groups_.has_levels()) {
    part_.emplace(all, groups_);
  }
}

bool LocalGroup::is_first() const { return groups_.local_rank_of(rank_) == 0; }

std::vector<int64_t> LocalGroup::first_ranks() const {
  std::vector<int64_t> first;
  for (int64_t group = 0; group < groups_.nodes(); ++group) first.push_back(groups_.ranks_of(group).at(0));
  return first;
}

at::Tensor LocalGroup::from_first(const at::Tensor& values, const char* step) const {
  if (!has_others()) {
    return values;
  }
  const ProcessGroupPtr& group = part_->group();
  const bool moves = collectives::moves_tensors_on(values.device().type(), group);
  std::vector<at::Tensor> sent = {values.to(moves ? values.device() : collectives::any_device(group))};
  with_network_errors(rank_, step, [&] { group->broadcast(sent)->wait(); });
  return sent[0].to(values.device());
}

int64_t LocalGroup::from_first(int64_t value, const char* step) const {
  return has_others() ? from_first(at::full({1}, value, at::kLong), step).item<int64_t>() : value;
}

at::Tensor LocalGroup::gather(const at::Tensor& values, const char* step) const {
  if (!has_others()) {
    return values.unsqueeze(0);
  }
  const ProcessGroupPtr& group = part_->group();
  return with_network_errors(
      rank_, step, [&] { return collectives::all_gather_rows(group, values.to(collectives::any_device(group))); });
}

}  // namespace narrowcast

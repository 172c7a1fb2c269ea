#include "ops/collectives/all_reduce/stream/stream_groups.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::collectives {
namespace {

using Group = StreamGroups::Group;

// A number that is the same on all ranks and differs between calls: rank 0 counts.
int64_t next_number(const Group& group) {
  int64_t number = 0;
  if (group->getRank() == 0) {
    number = group->getStore()->add("narrowcast/groups", 1);
  }
  const at::Tensor own = at::full({1}, number, at::kLong);
  return all_gather_rows(group, "splitting a group", own, any_device(group))[0].item<int64_t>();
}

}  // namespace

StreamGroups::StreamGroups(const Group& group, node::NodeLayout layout, const MakeGroup& make)
    : layout_(std::move(layout)) {
  TORCH_CHECK_VALUE(make, "group must use NCCL for GPU tensors to be split");
  const int64_t rank = group->getRank();
  const int64_t node = layout_.node_of(rank);
  const int64_t local_rank = layout_.local_rank_of(rank);
  const int64_t number = next_number(group);
  const auto split = [&](const std::string& name, int64_t place, const std::vector<int64_t>& ranks) {
    auto store =
        c10::make_intrusive<c10d::PrefixStore>(c10::str("narrowcast/groups/", number, "/", name), group->getStore());
    return SplitGroup(
        group,
        with_backend_errors(
            rank, "splitting a group",
            [&] { return make(std::move(store), static_cast<int>(place), static_cast<int>(ranks.size())); }),
        ranks);
  };
  node_ = split(c10::str("node", node), local_rank, layout_.ranks_of(node));
  if (local_rank < layout_.segments() && layout_.nodes() > 1) {
    std::vector<int64_t> owners;
    for (int64_t other = 0; other < layout_.nodes(); ++other) {
      owners.push_back(layout_.ranks_of(other)[static_cast<size_t>(local_rank)]);
    }
    owners_ = split(c10::str("owners", local_rank), node, owners);
  }
}

}  // namespace narrowcast::collectives

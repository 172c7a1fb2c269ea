#include "hooks/group_part.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "ops/backend_errors.h"
#include "ops/collectives/mean/stream_groups.h"

namespace narrowcast::hooks {
namespace {

using c10d::ProcessGroup;
using PartStore = c10::intrusive_ptr<c10d::Store>;

// Not by ProcessGroup::splitGroup: Gloo's part changes the options of its parent, so that a second one reads beyond
// their end, and NCCL's waits for every rank of the parent, also those that are alone. Gloo's `merge` makes a group of
// whoever meets in a store, and asks nothing of the parent.
GroupPart::Group make_part(const GroupPart::Group& all, const PartStore& store, int place, int size) {
  auto part = c10::make_intrusive<ProcessGroup>(store, place, size);
  part->setBoundDeviceId(all->getBoundDeviceId());  // Which the backends take over.
  const auto of_gpus = collectives::gpu::group_maker(all);
  std::map<c10d::Backend*, c10::intrusive_ptr<c10d::Backend>> made;  // One backend may be that of several devices.
  for (const at::Device& device : all->getDeviceTypes()) {
    const auto parent = all->getBackend(device.type());
    const std::string kind = parent->getBackendName();
    auto& backend = made[parent.get()];
    if (!backend) {
      const auto own_store = c10::make_intrusive<c10d::PrefixStore>(kind, store);
      backend = device.is_cuda() && of_gpus ? of_gpus(own_store, place, size)->getBackend(at::kCUDA)
                                            : parent->merge(own_store, parent->getBackendOptions(), place, size);
    }
    part->setBackend(device.type(), ProcessGroup::strToBackendType(kind), backend);
    part->setDefaultBackend(kind);
  }
  return part;
}

}  // namespace

GroupPart::GroupPart(const Group& all, const node::NodeLayout& parts) {
  const int64_t rank = all->getRank();
  const int64_t part = parts.node_of(rank);
  const auto size = static_cast<int>(parts.ranks_of(part).size());
  group_ = with_backend_errors(rank, "making groups of ranks", [&]() -> Group {
    // The store keeps what earlier groups have told each other. As all ranks make theirs in the same order, they count
    // alike.
    const int64_t number = all->getStore()->add(c10::str("narrowcast/parts/of rank ", rank), 1);
    if (size == 1) {
      return {};
    }
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(c10::str("narrowcast/parts/", number, "/", part), all->getStore());
    return make_part(all, store, static_cast<int>(parts.local_rank_of(rank)), size);
  });
}

// NCCL's communicators want to be told.
GroupPart::~GroupPart() {
  if (!group_ || !collectives::gpu::group_maker(group_)) {
    return;
  }
  try {
    const auto nccl = group_->getBackend(at::kCUDA);
    if (std::uncaught_exceptions() > 0) {
      nccl->abort();
    } else {
      nccl->shutdown();
    }
  } catch (const c10::Error&) {
    // A destructor has nobody to tell.
  }
}

}  // namespace narrowcast::hooks

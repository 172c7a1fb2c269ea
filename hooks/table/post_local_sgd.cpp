#include "hooks/table/post_local_sgd.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <narrowcast/hooks.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/table/hook_table.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::hooks {
namespace {

using c10d::ProcessGroup;
using GroupPtr = c10::intrusive_ptr<ProcessGroup>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using node::NodeLayout;

constexpr const char* kIteration = "iteration";
constexpr const char* kGroups = "groups";
constexpr const char* kGlobal = "global.";
constexpr const char* kLocal = "local.";

// ProcessGroup::splitGroup is not used. Gloo's version changes the options of its parent, so that a second split reads
// beyond their end. NCCL's version waits for every rank of the parent, including ranks that are alone. Gloo's `merge`
// makes a group of the ranks that meet in a store, and does not involve the parent.
GroupPtr make_part(const GroupPtr& all, const StorePtr& store, int place, int size) {
  auto part = c10::make_intrusive<ProcessGroup>(store, place, size);
  part->setBoundDeviceId(all->getBoundDeviceId());  // The backends read it.
  const auto of_gpus = collectives::gpu::group_maker(all);
  std::map<c10d::Backend*, c10::intrusive_ptr<c10d::Backend>> made;  // Several devices may share a backend.
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

std::unique_ptr<CommHook> make_hook_in(const GroupPtr& group, const HookOptions& options) {
  return group.defined() ? create_comm_hook(options.local.hook, {.process_group = group, .device = options.device})
                         : nullptr;
}

// The options of the hook inside a group.
HookOptions inner_options(const HookOptions& options) {
  return {.process_group = options.process_group, .device = options.device};
}

NodeLayout largest_group(const HookOptions& options, const NodeLayout& nodes) {
  const NodeLayout groups = local_groups(options.local, nodes);
  int64_t size = 1;
  for (int64_t group = 0; group < groups.nodes(); ++group) {
    size = std::max(size, static_cast<int64_t>(groups.ranks_of(group).size()));
  }
  return NodeLayout::flat(size);
}

}  // namespace

GroupPart::GroupPart(const Group& all, const NodeLayout& parts) {
  const int64_t rank = all->getRank();
  const int64_t part = parts.node_of(rank);
  const auto size = static_cast<int>(parts.ranks_of(part).size());
  Group made = with_backend_errors(rank, "making groups of ranks", [&]() -> Group {
    // The store keeps the keys of earlier groups. All ranks make their groups in the same order, so their counters
    // agree.
    const int64_t number = all->getStore()->add(c10::str("narrowcast/parts/of rank ", rank), 1);
    if (size == 1) {
      return {};
    }
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(c10::str("narrowcast/parts/", number, "/", part), all->getStore());
    return make_part(all, store, static_cast<int>(parts.local_rank_of(rank)), size);
  });
  if (made) {
    group_ = collectives::SplitGroup(all, std::move(made), parts.ranks_of(part));
  }
}

NodeLayout local_groups(const LocalOptions& options, const NodeLayout& nodes) {
  return options.group_size ? NodeLayout::of_size(nodes.world_size(), *options.group_size) : nodes;
}

// Groups that average gradients need no shared memory.
NodeLayout find_local_groups(const HookOptions& options) {
  const GroupPtr& all = options.process_group;
  return local_groups(options.local,
                      options.local.group_size ? NodeLayout::flat(all->getSize()) : node::find_nodes(all)->neighbours);
}

PostLocalSgdHook::PostLocalSgdHook(const HookRow& row, const HookOptions& options)
    : TableHook(row),
      options_(options.local),
      groups_(find_local_groups(options)),
      part_(options.process_group, groups_),
      global_(options_.start > 0 ? make_hook_in(options.process_group, options) : nullptr),
      local_(make_hook_in(part_.group(), options)) {}

c10::intrusive_ptr<c10::ivalue::Future> PostLocalSgdHook::runHook(c10d::GradBucket& bucket) {
  CommHook* const hook = this->hook();
  if (bucket.isLast() && iteration_ < options_.start) {
    ++iteration_;
  }
  if (hook == nullptr) {
    count_exchange(bucket, {});
    return completed_with(bucket.getBuffer());
  }
  return run_inside(*hook, bucket);
}

HookState PostLocalSgdHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = CommHook::state(parameters);
  state.emplace(kIteration, int_tensor(iteration_));
  state.emplace(kGroups, at::tensor(groups(), at::kLong));
  const auto add = [&](const char* prefix, const std::unique_ptr<CommHook>& hook) {
    if (hook != nullptr) {
      for (auto& [name, tensor] : hook->state(parameters)) {
        state.emplace(prefix + name, tensor);
      }
    }
  };
  add(kGlobal, global_);
  add(kLocal, local_);
  return state;
}

void PostLocalSgdHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  iteration_ = std::min(int_of(saved.own(), kIteration), options_.start);
  if (global_ != nullptr) {
    global_->load_state(part_of(saved, kGlobal), parameters);
  }
  const auto former_groups = saved.own().find(kGroups);
  const bool same_groups =
      former_groups != saved.own().end() && at::equal(former_groups->second, at::tensor(groups(), at::kLong));
  if (local_ != nullptr && same_groups) {
    FormerRanks local{.world_size = part_.group()->getSize(), .states = {}, .first = {}};
    local.states.push_back(part_of(saved.own(), kLocal));
    local_->load_state(local, parameters);
  }
}

void PostLocalSgdHook::rescale_state(double factor) {
  for (CommHook* const hook : {global_.get(), local_.get()}) {
    if (hook != nullptr) {
      hook->rescale_state(factor);
    }
  }
}

std::string PostLocalSgdHook::decision() const { return hook() == nullptr ? "" : hook()->decision(); }

HookRow post_local_sgd_row() {
  return {.name = kPostLocalSgdHook,
          .make = [](const HookRow& row,
                     const HookOptions& options) { return std::make_unique<PostLocalSgdHook>(row, options); },
          .payload_bytes =
              [](const GradientSizes& gradients, const NodeLayout& nodes, const HookOptions& options) {
                return hook_row(options.local.hook)
                    .payload_bytes(gradients, largest_group(options, nodes), inner_options(options));
              },
          .error_terms =
              [](const SentBucket& bucket, const NodeLayout& layout, const HookOptions& options) {
                return hook_row(options.local.hook).error_terms(bucket, layout, inner_options(options));
              },
          .keeps_replicas_equal = false,
          .averages_in_groups = true,
          .options = {OptionKind::kLocal}};
}

}  // namespace narrowcast::hooks

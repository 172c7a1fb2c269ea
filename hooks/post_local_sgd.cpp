#include "hooks/post_local_sgd.h"

#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <narrowcast/hooks.h>
#include "ops/backend_errors.h"
#include "ops/node/find_nodes.h"

namespace narrowcast::hooks {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using node::NodeLayout;

constexpr const char* kIteration = "iteration";
constexpr const char* kGlobal = "global.";
constexpr const char* kLocal = "local.";

// Backends read there which ranks of the job theirs are when they are split, and PyTorch's Python functions fill it in.
void number_ranks(const GroupPtr& group) {
  for (const at::Device& device : group->getDeviceTypes()) {
    std::vector<uint64_t>& ranks = group->getBackend(device.type())->getBackendOptions()->global_ranks_in_group;
    if (ranks.empty()) {
      ranks.resize(static_cast<size_t>(group->getSize()));
      std::iota(ranks.begin(), ranks.end(), uint64_t{0});
    }
  }
}

// A collective: this rank's group, or null. The store keeps what an earlier group's ranks have told each other, so each
// group gets a name of its own: as all ranks make their groups in the same order, they count alike.
GroupPtr make_group(const HookOptions& options) {
  const GroupPtr& all = options.process_group;
  const int64_t rank = all->getRank();
  const NodeLayout nodes = options.local.group_size ? NodeLayout::flat(all->getSize()) : node::find_nodes(all)->layout;
  const NodeLayout groups = local_groups(options.local, nodes);
  const std::vector<int64_t>& members = groups.ranks_of(groups.node_of(rank));
  return with_backend_errors(rank, "making groups of ranks", [&]() -> GroupPtr {
    const int64_t number = all->getStore()->add(c10::str("local groups made by rank ", rank), 1);
    if (members.size() == 1) {
      return {};
    }
    number_ranks(all);
    return all->splitGroup({members.begin(), members.end()}, std::nullopt, std::nullopt,
                           c10::str("local group ", number, " from rank ", members[0]), std::nullopt);
  });
}

std::unique_ptr<CommHook> make_hook_in(const GroupPtr& group, const LocalOptions& options) {
  return group.defined() ? create_comm_hook(options.hook, {.process_group = group}) : nullptr;
}

// What the hook inside a group is made with.
HookOptions inner_options(const HookOptions& options) { return {.process_group = options.process_group}; }

NodeLayout largest_group(const HookOptions& options, const NodeLayout& nodes) {
  const NodeLayout groups = local_groups(options.local, nodes);
  int64_t size = 1;
  for (int64_t group = 0; group < groups.nodes(); ++group) {
    size = std::max(size, static_cast<int64_t>(groups.ranks_of(group).size()));
  }
  return NodeLayout::flat(size);
}

}  // namespace

NodeLayout local_groups(const LocalOptions& options, const NodeLayout& nodes) {
  return options.group_size ? NodeLayout::of_size(nodes.world_size(), *options.group_size) : nodes;
}

PostLocalSgdHook::PostLocalSgdHook(const HookOptions& options)
    : options_(options.local),
      group_(make_group(options)),
      global_(options_.start > 0 ? make_hook_in(options.process_group, options_) : nullptr),
      local_(make_hook_in(group_, options_)) {}

c10::intrusive_ptr<c10::ivalue::Future> PostLocalSgdHook::runHook(c10d::GradBucket& bucket) {
  CommHook* const hook = this->hook();
  if (bucket.isLast() && iteration_ < options_.start) {
    ++iteration_;
  }
  if (hook == nullptr) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }
  const int64_t sent_before = hook->payload_bytes_sent();
  auto future = hook->runHook(bucket);
  count_payload(hook->payload_bytes_sent() - sent_before);
  return future;
}

HookState PostLocalSgdHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = CommHook::state(parameters);
  state.emplace(kIteration, int_tensor(iteration_));
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

// In another world groups may be others: their hook begins anew then.
void PostLocalSgdHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  iteration_ = std::min(int_of(saved.own(), kIteration), options_.start);
  if (global_ != nullptr) {
    global_->load_state(part_of(saved, kGlobal), parameters);
  }
  FormerRanks local{.world_size = group_.defined() ? group_->getSize() : 1, .states = {}, .first = {}};
  local.states.push_back(part_of(saved.own(), kLocal));
  if (local_ != nullptr && !local.own().empty()) {
    local_->load_state(local, parameters);
  }
}

std::string PostLocalSgdHook::decision() const { return hook() == nullptr ? "" : hook()->decision(); }

std::optional<double> PostLocalSgdHook::predicted_seconds(int64_t numel) const {
  return hook() == nullptr ? std::nullopt : hook()->predicted_seconds(numel);
}

HookRow post_local_sgd_row() {
  return {.name = "post_local_sgd",
          .make = [](const HookOptions& options) { return std::make_unique<PostLocalSgdHook>(options); },
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
          .takes_local = true};
}

}  // namespace narrowcast::hooks

// The state of a sharded optimizer, gathered from the shards of a node and cut into shards again.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast {
namespace {

using sharding::Elements;
using sharding::OptimizerKind;
using sharding::ParameterState;
using sharding::Piece;
using sharding::Shard;

constexpr int64_t kHeaderNumbers = 2;  // Of a PieceHeader.
constexpr const char* kGathering = "gathering the optimizer's state";

// The saved state of one whole parameter, whose entries are removed from `left`. Empty if the parameter had none.
std::optional<ParameterState> take_state(const OptimizerKind& kind, const torch::optim::OptimizerOptions& options,
                                         const std::string& name, const at::Tensor& parameter, hooks::HookState& left) {
  ParameterState state;
  bool any = false;
  const auto take = [&](const std::string& entry) {
    const auto found = left.find(name + "." + entry);
    at::Tensor tensor = found == left.end() ? at::Tensor() : found->second;
    if (found != left.end()) left.erase(found);
    any = any || tensor.defined();
    return tensor;
  };
  for (const std::string& entry : kind.tensors) {
    const at::Tensor& tensor = state.tensors.emplace_back(take(entry));
    NARROWCAST_CHECK_INPUT(
        !tensor.defined() || (tensor.sizes() == parameter.sizes() && tensor.scalar_type() == parameter.scalar_type()),
        "the optimizer's '", name, ".", entry, "' is ", tensor.scalar_type(), " ", tensor.sizes(),
        ", but the parameter is ", parameter.scalar_type(), " ", parameter.sizes());
  }
  if (kind.counts_steps) {
    const at::Tensor step = take("step");
    if (!any) return std::nullopt;
    NARROWCAST_CHECK_INPUT(step.defined(), "the optimizer's '", name, ".step' is missing");
    NARROWCAST_CHECK_INPUT(step.scalar_type() == at::kLong && step.numel() == 1, "the optimizer's '", name,
                           ".step' is not an integer");
    state.step = step.item<int64_t>();
  }
  for (size_t tensor = 0; any && tensor < kind.tensors.size(); ++tensor) {
    NARROWCAST_CHECK_INPUT(state.tensors[tensor].defined() || !kind.needs(options, tensor), "the optimizer's '", name,
                           ".", kind.tensors[tensor], "' is missing");
  }
  return any ? std::optional(state) : std::nullopt;
}

}  // namespace

const OptimizerKind& sharding::ShardedParts::kind() const {
  const OptimizerKind* const kind = sharding::kind_of(inner_);
  TORCH_CHECK_VALUE(kind != nullptr, "the optimizer's state can be saved only for ", sharding::kind_names());
  return *kind;
}

// The state of an own piece; empty if it has taken no step.
std::optional<ParameterState> sharding::ShardedParts::own_state(const OptimizerKind& kind, size_t piece) const {
  const auto found = inner_.state().find(own_[piece].unsafeGetTensorImpl());
  return found == inner_.state().end() ? std::nullopt : std::optional(kind.read(*found->second));
}

// The names of parameters_, in their order.
std::vector<std::string> sharding::ShardedParts::names_in(const std::vector<hooks::NamedParameter>& named) const {
  std::unordered_map<const at::TensorImpl*, std::string> by_parameter;
  for (const hooks::NamedParameter& parameter : named) {
    by_parameter.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = by_parameter.find(parameters_[i].unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found != by_parameter.end(), "parameter ", i, " of the optimizer, of sizes ",
                      parameters_[i].sizes(), ", has no name");
    names.push_back(found->second);
  }
  return names;
}

auto sharding::ShardedParts::gather_headers(const OptimizerKind& kind) -> PieceHeaders {
  std::vector<int64_t> own;
  for (size_t i = 0; i < own_.size(); ++i) {
    const std::optional<ParameterState> state = own_state(kind, i);
    int64_t tensors = 0;
    for (size_t tensor = 0; state && tensor < state->tensors.size(); ++tensor) {
      tensors |= int64_t{state->tensors[tensor].defined()} << tensor;
    }
    own.push_back(state ? state->step.value_or(0) : kNoState);
    own.push_back(tensors);
  }
  std::vector<int64_t> counts;
  for (const Shard& shard : shards_) {
    counts.push_back(kHeaderNumbers * std::ssize(shard));
  }
  PieceHeaders headers;
  for (const std::vector<int64_t>& numbers : exchange_.all_gather(kGathering, counts, own)) {
    headers.emplace_back();
    for (size_t i = 0; i < numbers.size(); i += kHeaderNumbers) {
      headers.back().push_back({.step = numbers[i], .tensors = numbers[i + 1]});
    }
  }
  return headers;
}

// One tensor of the state of each parameter, on rank 0; empty on others. Zeros where a parameter has
// none.
std::vector<at::Tensor> sharding::ShardedParts::gather_tensor(const OptimizerKind& kind, size_t tensor,
                                                              const PieceHeaders& headers) {
  std::vector<at::Tensor> gathered;
  std::vector<std::unique_ptr<Elements>> shards(shards_.size());
  if (is_rank_0_) {
    for (const at::Tensor& parameter : parameters_) {
      gathered.push_back(at::zeros_like(parameter));
    }
    for (size_t other = 0; other < shards_.size(); ++other) {
      std::vector<at::Tensor> pieces;
      for (const Piece& piece : shards_[other]) {
        pieces.push_back(sharding::memory_of(gathered[piece.parameter], piece));
      }
      shards[other] = std::make_unique<Elements>(std::move(pieces));
    }
  }
  const Shard& own_shard = shards_[local_rank_];
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < own_.size(); ++i) {
    const Piece& piece = own_shard[i];
    const bool has_tensor = headers[local_rank_][i].has(tensor);
    at::Tensor values = has_tensor ? own_state(kind, i)->tensors[tensor] : at::zeros_like(own_[i]);
    if (values.strides() != own_[i].strides()) {  // As SGD's, a copy of the first gradient.
      values = at::empty_like(own_[i]).copy_(values);
    }
    own.push_back(sharding::memory_of(values, {piece.parameter, 0, piece.numel}));
    if (is_rank_0_) {
      sharding::memory_of(gathered[piece.parameter], piece).copy_(own.back());
    }
  }
  shards[local_rank_] = std::make_unique<Elements>(std::move(own));
  exchange_.run(kGathering, shards);
  return gathered;
}

// All ranks of all nodes know from the headers which tensors there are, because all nodes hold the same state.
hooks::HookState sharding::ShardedParts::state(const std::vector<hooks::NamedParameter>& named) {
  const at::NoGradGuard no_grad;
  const OptimizerKind& optimizer_kind = kind();
  const std::vector<std::string> names = names_in(named);
  const PieceHeaders headers = gather_headers(optimizer_kind);
  hooks::HookState state;
  const auto each_piece = [&](const auto& body) {
    for (size_t local_rank = 0; local_rank < shards_.size(); ++local_rank) {
      for (size_t i = 0; i < shards_[local_rank].size(); ++i) {
        body(shards_[local_rank][i].parameter, headers[local_rank][i]);
      }
    }
  };
  for (size_t tensor = 0; tensor < optimizer_kind.tensors.size(); ++tensor) {
    bool any = false;
    each_piece([&](size_t /*parameter*/, const PieceHeader& header) { any = any || header.has(tensor); });
    if (!any) {
      continue;
    }
    const std::vector<at::Tensor> gathered = gather_tensor(optimizer_kind, tensor, headers);
    each_piece([&](size_t parameter, const PieceHeader& header) {
      if (is_rank_0_ && header.has(tensor)) {
        state[c10::str(names[parameter], ".", optimizer_kind.tensors[tensor])] = gathered[parameter];
      }
    });
  }
  each_piece([&](size_t parameter, const PieceHeader& header) {
    if (is_rank_0_ && optimizer_kind.counts_steps && header.step != kNoState) {
      state[names[parameter] + ".step"] = hooks::int_tensor(header.step);
    }
  });
  return state;
}

void sharding::ShardedParts::load_state(const hooks::HookState& saved,
                                        const std::vector<hooks::NamedParameter>& named) {
  const at::NoGradGuard no_grad;
  const OptimizerKind& optimizer_kind = kind();
  const std::vector<std::string> names = names_in(named);
  hooks::HookState left = saved;
  std::vector<std::optional<ParameterState>> states;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    states.push_back(
        take_state(optimizer_kind, inner_.param_groups()[groups_[i]].options(), names[i], parameters_[i], left));
  }
  NARROWCAST_CHECK_INPUT(left.empty(), "the optimizer's '", left.begin()->first, "' is unknown");
  const Shard& own = shards_[local_rank_];
  for (size_t i = 0; i < own.size(); ++i) {
    std::optional<ParameterState> state = states[own[i].parameter];
    if (!state) continue;
    const at::Tensor& parameter = parameters_[own[i].parameter];
    for (at::Tensor& tensor : state->tensors) {
      if (!tensor.defined()) continue;
      const at::Tensor whole = at::empty_like(parameter).copy_(tensor);  // In the parameter's order of memory.
      tensor = whole_ ? whole : sharding::memory_of(whole, own[i]).clone();
    }
    inner_.state()[own_[i].unsafeGetTensorImpl()] = optimizer_kind.make(*state);
  }
}

}  // namespace narrowcast

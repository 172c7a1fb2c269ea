// The state of a sharded optimizer: gathered from the shards, cut into shards again, and moved between shards.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::sharding {
namespace {

constexpr int64_t kHeaderNumbers = 2;  // The size of a PieceHeader.
constexpr const char* kGathering = "gathering the optimizer's state";
constexpr const char* kMaster = ".master";

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
  if (kind.counts_steps(options)) {
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

// The saved master of a parameter, which is removed from `left`; undefined if the state has no master.
at::Tensor take_master(const std::string& name, const at::Tensor& parameter, hooks::HookState& left) {
  const auto found = left.find(name + kMaster);
  if (found == left.end()) {
    return {};
  }
  const at::Tensor master = found->second;
  left.erase(found);
  NARROWCAST_CHECK_INPUT(master.sizes() == parameter.sizes() && master.scalar_type() == parameter.scalar_type(),
                         "the optimizer's '", name, kMaster, "' is ", master.scalar_type(), " ", master.sizes(),
                         ", but the parameter is ", parameter.scalar_type(), " ", parameter.sizes());
  return master;
}

}  // namespace

const OptimizerKind& ShardedParts::kind() const {
  const OptimizerKind* const kind = kind_of(inner_);
  TORCH_CHECK_VALUE(kind != nullptr, "the optimizer's state can be saved only for ", kind_names());
  return *kind;
}

bool ShardedParts::counts_steps(const OptimizerKind& kind, size_t parameter) const {
  return kind.counts_steps(inner_.param_groups()[groups_[parameter]].options());
}

// The state of a piece that this rank holds; empty if it has taken no step.
std::optional<ParameterState> ShardedParts::state_of(const OptimizerKind& kind, size_t piece) const {
  const auto found = inner_.state().find(tensors_[piece].unsafeGetTensorImpl());
  return found == inner_.state().end() ? std::nullopt : std::optional(kind.read(*found->second));
}

void ShardedParts::set_state(const OptimizerKind& kind, size_t piece, const ParameterState& state) {
  inner_.state()[tensors_[piece].unsafeGetTensorImpl()] = kind.make(state);
}

// The names of the parameters, in their order.
std::vector<std::string> ShardedParts::names_in(const std::vector<hooks::NamedParameter>& named) const {
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

auto ShardedParts::gather_headers(const OptimizerKind& kind) -> PieceHeaders {
  std::vector<int64_t> own;
  for (int64_t i = 0; i < own_pieces(); ++i) {
    const std::optional<ParameterState> state = state_of(kind, i);
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
  for (const std::vector<int64_t>& numbers : place_.exchange->all_gather(kGathering, counts, own)) {
    headers.emplace_back();
    for (size_t i = 0; i < numbers.size(); i += kHeaderNumbers) {
      headers.back().push_back({.step = numbers[i], .tensors = numbers[i + 1]});
    }
  }
  return headers;
}

// All pieces of a parameter have taken the same steps.
auto ShardedParts::by_parameter(const PieceHeaders& headers) const -> std::unordered_map<size_t, PieceHeader> {
  std::unordered_map<size_t, PieceHeader> headers_by_parameter;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (size_t i = 0; i < shards_[shard].size(); ++i) {
      headers_by_parameter.emplace(shards_[shard][i].parameter, headers[shard][i]);
    }
  }
  return headers_by_parameter;
}

// One tensor of the state of each own piece, in the order of the piece's memory: [numel]. Zeros where a piece has none.
std::vector<at::Tensor> ShardedParts::own_values(const OptimizerKind& kind, size_t tensor) const {
  std::vector<at::Tensor> values;
  for (int64_t i = 0; i < own_pieces(); ++i) {
    const std::optional<ParameterState> state = state_of(kind, i);
    at::Tensor value = state ? state->tensors[tensor] : at::Tensor();
    if (!value.defined()) {
      value = at::zeros_like(tensors_[i]);
    } else if (value.strides() != tensors_[i].strides()) {  // As SGD's, a copy of the first gradient.
      value = at::empty_like(tensors_[i]).copy_(value);
    }
    values.push_back(memory_of_whole(value));
  }
  return values;
}

// Each rank gives values for the elements of its pieces. It takes the values of the elements in the target's pieces.
void ShardedParts::gather(const std::vector<at::Tensor>& own_values, const PieceMemory& target) {
  std::vector<Elements> shards;
  for (const Shard& shard : shards_) {
    shards.push_back(elements_in(shard, target.pieces, target.memory));
  }
  Elements& own = shards[place_.exchange->own()];
  copy_elements(Elements(own_values), own);
  own = Elements(own_values);
  place_.exchange->run(kGathering, shards);
}

// The headers say which tensors exist. They are the same on all ranks of all nodes.
hooks::HookState ShardedParts::state(const std::vector<hooks::NamedParameter>& named) {
  const at::NoGradGuard no_grad;
  finish_step();
  const OptimizerKind& optimizer_kind = kind();
  const std::vector<std::string> names = names_in(named);
  const std::unordered_map<size_t, PieceHeader> headers = by_parameter(gather_headers(optimizer_kind));
  const bool is_rank_0 = place_.group->getRank() == 0;
  hooks::HookState state;
  const auto gather_whole = [&](const std::vector<at::Tensor>& values, const std::string& entry, const auto& has) {
    PieceMemory whole;
    std::vector<at::Tensor> gathered;
    for (size_t i = 0; is_rank_0 && i < parameters_.size(); ++i) {
      gathered.push_back(at::zeros_like(parameters_[i]));
      whole.pieces.push_back({i, 0, gathered[i].numel()});
      whole.memory.push_back(memory_of_whole(gathered[i]));
    }
    gather(values, whole);
    for (size_t i = 0; i < gathered.size(); ++i) {
      if (has(i)) {
        state[names[i] + entry] = gathered[i];
      }
    }
  };
  for (size_t tensor = 0; tensor < optimizer_kind.tensors.size(); ++tensor) {
    const auto has = [&](size_t parameter) {
      const auto header = headers.find(parameter);
      return header != headers.end() && header->second.has(tensor);
    };
    if (std::ranges::any_of(headers, [&](const auto& header) { return header.second.has(tensor); })) {
      gather_whole(own_values(optimizer_kind, tensor), "." + optimizer_kind.tensors[tensor], has);
    }
  }
  if (has_masters()) {
    gather_whole(own_masters(), kMaster, [](size_t /*parameter*/) { return true; });
  }
  for (const auto& [parameter, header] : headers) {
    if (is_rank_0 && counts_steps(optimizer_kind, parameter) && header.step != kNoState) {
      state[names[parameter] + ".step"] = hooks::int_tensor(header.step);
    }
  }
  return state;
}

void ShardedParts::load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& named) {
  const at::NoGradGuard no_grad;
  const OptimizerKind& optimizer_kind = kind();
  const std::vector<std::string> names = names_in(named);
  finish_step();
  follow_buckets();
  hooks::HookState left = saved;
  std::vector<std::optional<ParameterState>> states;
  std::vector<at::Tensor> saved_masters;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const auto& options = inner_.param_groups()[groups_[i]].options();
    states.push_back(take_state(optimizer_kind, options, names[i], parameter, left));
    saved_masters.push_back(take_master(names[i], parameter, left));
  }
  NARROWCAST_CHECK_INPUT(left.empty(), "the optimizer's '", left.begin()->first, "' is unknown");
  has_state_ = true;
  for (size_t i = 0; i < held_.size(); ++i) {
    const at::Tensor& parameter = parameters_[held_[i].parameter];
    const auto in_memory_order = [&](const at::Tensor& tensor) { return at::empty_like(parameter).copy_(tensor); };
    if (has_masters()) {
      const at::Tensor& master = saved_masters[held_[i].parameter];
      const at::Tensor whole = master.defined() ? in_memory_order(master) : parameter;
      memory_of_whole(tensors_[i]).copy_(memory_of(whole, held_[i]));
    }
    std::optional<ParameterState> state = states[held_[i].parameter];
    if (!state) continue;
    for (at::Tensor& tensor : state->tensors) {
      if (!tensor.defined()) continue;
      const at::Tensor whole = in_memory_order(tensor);
      tensor = place_.cuts_parameters ? memory_of(whole, held_[i]).clone() : whole;
    }
    set_state(optimizer_kind, i, *state);
  }
}

// Gives up one tensor of the state of each piece.
void ShardedParts::forget(const OptimizerKind& kind, size_t tensor) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (std::optional<ParameterState> state = state_of(kind, i)) {
      state->tensors[tensor] = at::Tensor();
      set_state(kind, i, *state);
    }
  }
}

// Moves masters and state to other shards, one tensor after the other. The old memory shrinks while the new one grows.
// If an exchange fails, the group cannot be used any more, and so nobody can ask for the state. All pieces are parts of
// parameters. Before the first step there may be nothing to move.
void ShardedParts::move_to(std::vector<Shard> shards) {
  const at::NoGradGuard no_grad;
  if (!has_state_) {
    use(std::move(shards));
    make_tensors();
    return;
  }
  const OptimizerKind& optimizer_kind = kind();
  const std::unordered_map<size_t, PieceHeader> headers = by_parameter(gather_headers(optimizer_kind));
  const Shard target = held_of(shards);
  const auto moved = [&](const std::vector<at::Tensor>& values) {
    std::vector<at::Tensor> memory;
    for (const Piece& piece : target) {
      memory.push_back(at::empty({piece.numel}, at::kFloat));  // All of it is written: shards have all elements.
    }
    std::vector<Elements> elements;
    for (const Shard& shard : shards_) {
      elements.push_back(elements_in(shard, target, memory));
    }
    place_.over_all->move(kGathering, Elements(values), elements);
    return memory;
  };
  std::vector<ParameterState> states(target.size());
  for (size_t tensor = 0; tensor < optimizer_kind.tensors.size(); ++tensor) {
    const bool any = std::ranges::any_of(headers, [&](const auto& header) { return header.second.has(tensor); });
    const std::vector<at::Tensor> former = any ? own_values(optimizer_kind, tensor) : std::vector<at::Tensor>();
    forget(optimizer_kind, tensor);  // Copies of other shards have no other owner.
    const std::vector<at::Tensor> values = any ? moved(former) : std::vector<at::Tensor>();
    for (size_t i = 0; i < target.size(); ++i) {
      states[i].tensors.push_back(any && headers.at(target[i].parameter).has(tensor) ? values[i] : at::Tensor());
    }
  }
  std::vector<at::Tensor> masters;
  if (has_masters()) {
    const Elements copies({tensors_.begin() + own_pieces(), tensors_.end()});
    copies.release(0, copies.numel());
    masters = moved(own_masters());
  }
  inner_.state().clear();
  use(std::move(shards));
  make_tensors(std::move(masters));
  for (size_t i = 0; i < target.size(); ++i) {
    const PieceHeader& header = headers.at(target[i].parameter);
    if (header.step != kNoState) {
      states[i].step = counts_steps(optimizer_kind, target[i].parameter) ? std::optional(header.step) : std::nullopt;
      set_state(optimizer_kind, i, states[i]);
    }
  }
}

}  // namespace narrowcast::sharding

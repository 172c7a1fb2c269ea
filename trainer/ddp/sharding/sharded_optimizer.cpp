#include <narrowcast/sharded_optimizer.h>

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/agree.h"
#include "trainer/ddp/process_group/backends.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast {
namespace {

using sharding::Elements;
using sharding::Piece;
using sharding::Shard;
using torch::optim::Optimizer;

void check_parameter(const at::Tensor& parameter, size_t index) {
  TORCH_CHECK_VALUE(parameter.is_cpu(), "parameter ", index, " of the optimizer is on ", parameter.device(),
                    ", but shards are exchanged in the memory of a node: it must be on the CPU");
  TORCH_CHECK_VALUE(parameter.scalar_type() == at::kFloat, "parameter ", index, " of the optimizer is ",
                    parameter.scalar_type(), ", but must be float32");
  TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "parameter ", index, " of the optimizer, of sizes ",
                    parameter.sizes(), " and strides ", parameter.strides(), ", has holes or overlaps in memory");
}

// The parameters that get gradients, each once, in the order of the groups.
std::vector<at::Tensor> checked_parameters(const Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        check_parameter(parameter, parameters.size());
        parameters.push_back(parameter);
      }
    }
  }
  TORCH_CHECK_VALUE(!parameters.empty(), "the optimizer has no parameter that requires a gradient");
  return parameters;
}

void check_optimizer(const Optimizer& optimizer, const ShardOptions& options) {
  TORCH_CHECK_VALUE(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
                    "LBFGS computes with all parameters at once, so it cannot be sharded");
  TORCH_CHECK_VALUE(optimizer.state().empty(),
                    "the optimizer already has a state: shard it before its first step. Adagrad makes its state in its "
                    "constructor, so it cannot be sharded");
  TORCH_CHECK_VALUE(options.whole_parameters() || sharding::kind_of(optimizer) != nullptr, "the optimizer is none of ",
                    sharding::kind_names(),
                    ", so its steps may need whole parameters: set ShardOptions::whole_parameters");
  TORCH_CHECK_VALUE(options.node_size().value_or(1) >= 1, "node_size: must be at least 1, but is ",
                    *options.node_size());
}

// By parameter, the index of its group.
std::vector<size_t> groups_of(const std::vector<at::Tensor>& parameters, const Optimizer& optimizer) {
  std::unordered_map<const at::TensorImpl*, size_t> groups;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      groups.emplace(parameter.unsafeGetTensorImpl(), group);
    }
  }
  std::vector<size_t> of_parameters;
  for (const at::Tensor& parameter : parameters) {
    of_parameters.push_back(groups.at(parameter.unsafeGetTensorImpl()));
  }
  return of_parameters;
}

std::vector<NamedValue> compared_values(const Optimizer& optimizer, const ShardOptions& options,
                                        const std::vector<at::Tensor>& parameters) {
  const sharding::OptimizerKind* const kind = sharding::kind_of(optimizer);
  const std::vector<size_t> groups = groups_of(parameters, optimizer);
  std::vector<NamedValue> values = {{"whole_parameters", options.whole_parameters() ? "true" : "false"},
                                    {"node_size", options.node_size() ? c10::str(*options.node_size()) : "not set"},
                                    {"the optimizer", kind != nullptr ? kind->name : "another one"},
                                    {"the number of parameters", c10::str(parameters.size())}};
  for (size_t i = 0; i < parameters.size(); ++i) {
    values.push_back({c10::str("parameter ", i), c10::str(parameters[i].sizes(), " with strides ",
                                                          parameters[i].strides(), " in group ", groups[i])});
  }
  return values;
}

// A collective.
std::vector<at::Tensor> agree_on_parameters(const Optimizer& inner, const ProcessGroupPtr& group,
                                            const ShardOptions& options) {
  std::vector<at::Tensor> parameters;
  const auto check = [&] {
    check_optimizer(inner, options);
    parameters = checked_parameters(inner);
  };
  TORCH_CHECK_VALUE(group->getSize() > 1, "an optimizer cannot be sharded in a group of one rank");
  collectives::agree(group, {.call = "ShardedOptimizer", .refusal = collectives::refusal_of(check)});
  check_equal_on_all_ranks(group, compared_values(inner, options, parameters));
  return parameters;
}

// A collective.
std::shared_ptr<const node::FoundNodes> find_shared_nodes(const ProcessGroupPtr& group, const ShardOptions& options) {
  auto nodes = with_network_errors(group->getRank(), "finding the ranks of each node",
                                   [&] { return node::find_nodes(group, options.node_size()); });
  TORCH_CHECK_VALUE(nodes->layout.has_levels(), "an optimizer cannot be sharded within nodes, because ",
                    nodes->why_flat.empty() ? "every node has one rank" : nodes->why_flat);
  return nodes;
}

// The gradient with the parameter's order in memory.
at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& gradient) {
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "a gradient of layout ", gradient.layout(),
                    " cannot be sharded");
  return gradient.strides() == parameter.strides() ? gradient : at::empty_like(parameter).copy_(gradient);
}

}  // namespace

sharding::ShardedParts::ShardedParts(Optimizer& inner, const ProcessGroupPtr& group, const ShardOptions& options)
    : inner_(inner),
      whole_(options.whole_parameters()),
      parameters_(agree_on_parameters(inner, group, options)),
      groups_(groups_of(parameters_, inner)),
      nodes_(find_shared_nodes(group, options)),
      local_rank_(nodes_->memory->local_rank()),
      is_rank_0_(group->getRank() == 0),
      shards_(cut(nodes_->memory->local_size())),
      exchange_(group, nodes_, shards_, largest_shard()) {
  for (const Piece& piece : shards_[local_rank_]) {
    const at::Tensor& parameter = parameters_[piece.parameter];
    own_.push_back(whole_ ? parameter : sharding::memory_of(parameter, piece));
  }
  replace_parameters();
}

std::vector<Shard> sharding::ShardedParts::cut(int64_t count) const {
  std::vector<int64_t> numels;
  for (const at::Tensor& parameter : parameters_) {
    numels.push_back(parameter.numel());
  }
  return whole_ ? sharding::cut_whole(numels, count) : sharding::cut_pieces(numels, count);
}

// Nodes may have unequal numbers of ranks.
int64_t sharding::ShardedParts::largest_shard() const {
  int64_t largest = 0;
  for (int64_t node = 0; node < nodes_->layout.nodes(); ++node) {
    for (const Shard& shard : cut(std::ssize(nodes_->layout.ranks_of(node)))) {
      largest = std::max(largest, sharding::elements_of(shard));
    }
  }
  return largest;
}

// Replaces the parameters in the optimizer's groups by this rank's pieces of them.
void sharding::ShardedParts::replace_parameters() {
  std::unordered_map<const at::TensorImpl*, std::vector<at::Tensor>> pieces;
  const Shard& own = shards_[local_rank_];
  for (size_t i = 0; i < own.size(); ++i) {
    pieces[parameters_[own[i].parameter].unsafeGetTensorImpl()].push_back(own_[i]);
  }
  for (auto& group : inner_.param_groups()) {
    std::vector<at::Tensor> of_group;
    for (const at::Tensor& parameter : group.params()) {
      const std::vector<at::Tensor> found = std::exchange(pieces[parameter.unsafeGetTensorImpl()], {});
      of_group.insert(of_group.end(), found.begin(), found.end());
    }
    group.params() = std::move(of_group);
  }
}

// A rank that fails alone takes part in the exchange, so that the others fail instead of waiting.
void sharding::ShardedParts::step() {
  std::exception_ptr failure;
  try {
    step_own_pieces();
  } catch (...) {
    failure = std::current_exception();
  }
  exchange_parameters(failure);
  for (const at::Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();  // As an operator that changes it.
  }
}

void sharding::ShardedParts::exchange_parameters(const std::exception_ptr& failure) {
  std::vector<std::unique_ptr<Elements>> elements;
  for (const Shard& shard : shards_) {
    elements.push_back(elements_of_parameters(shard));
  }
  exchange_.run("exchanging the shards of the parameters", elements, failure);
}

// The pieces do not keep their gradients, which are views of others: LibTorch's zero_grad refuses views.
void sharding::ShardedParts::step_own_pieces() {
  if (whole_) {
    inner_.step();
    return;
  }
  pass_gradients();
  const auto forget = c10::make_scope_exit([this] {
    for (const at::Tensor& piece : own_) {
      piece.mutable_grad() = at::Tensor();
    }
  });
  inner_.step();
}

void sharding::ShardedParts::pass_gradients() {
  const Shard& own = shards_[local_rank_];
  for (size_t i = 0; i < own.size(); ++i) {
    const at::Tensor& parameter = parameters_[own[i].parameter];
    const at::Tensor& gradient = parameter.grad();
    own_[i].mutable_grad() =
        gradient.defined() ? sharding::memory_of(laid_out_as(parameter, gradient), own[i]) : at::Tensor();
  }
}

std::unique_ptr<Elements> sharding::ShardedParts::elements_of_parameters(const Shard& shard) const {
  std::vector<at::Tensor> tensors;
  for (const Piece& piece : shard) {
    tensors.push_back(sharding::memory_of(parameters_[piece.parameter], piece));
  }
  return std::make_unique<Elements>(std::move(tensors));
}

void sharding::ShardedParts::zero_grad() {
  for (at::Tensor parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

int64_t sharding::ShardedParts::elements() const {
  int64_t elements = 0;
  for (const Shard& shard : shards_) {
    elements += sharding::elements_of(shard);
  }
  return elements;
}

ShardedOptimizer::ShardedOptimizer(Optimizer& inner, ProcessGroupPtr group, const ShardOptions& options)
    : parts_(std::make_unique<sharding::ShardedParts>(inner, checked_group(std::move(group)), options)) {}

ShardedOptimizer::~ShardedOptimizer() = default;

void ShardedOptimizer::step() { parts_->step(); }

void ShardedOptimizer::zero_grad() { parts_->zero_grad(); }

hooks::HookState ShardedOptimizer::state(const std::vector<hooks::NamedParameter>& parameters) {
  return parts_->state(parameters);
}

void ShardedOptimizer::load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& parameters) {
  parts_->load_state(saved, parameters);
}

int64_t ShardedOptimizer::elements() const { return parts_->elements(); }

int64_t ShardedOptimizer::own_elements() const { return parts_->own_elements(); }

int64_t ShardedOptimizer::shards() const { return parts_->shards(); }

}  // namespace narrowcast

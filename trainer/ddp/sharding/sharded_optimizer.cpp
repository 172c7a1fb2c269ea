#include <narrowcast/sharded_optimizer.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/agree.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/optimization/gradients.h"
#include "trainer/ddp/process_group/backends.h"
#include "trainer/ddp/sharding/node_exchange.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast {
namespace {

using sharding::OptimizerParameters;
using torch::optim::Optimizer;

void check_parameter(const at::Tensor& parameter, size_t index) {
  TORCH_CHECK_VALUE(parameter.is_cpu(), "parameter ", index, " of the optimizer is on ", parameter.device(),
                    ", but shards are exchanged in the memory of a node: it must be on the CPU");
  TORCH_CHECK_VALUE(parameter.scalar_type() == at::kFloat, "parameter ", index, " of the optimizer is ",
                    parameter.scalar_type(), ", but must be float32");
  TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "parameter ", index, " of the optimizer, of sizes ",
                    parameter.sizes(), " and strides ", parameter.strides(), ", has holes or overlaps in memory");
}

OptimizerParameters checked_parameters(const Optimizer& optimizer) {
  OptimizerParameters parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        check_parameter(parameter, parameters.tensors.size());
        parameters.tensors.push_back(parameter);
        parameters.groups.push_back(group);
      }
    }
  }
  TORCH_CHECK_VALUE(!parameters.tensors.empty(), "the optimizer has no parameter that requires a gradient");
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
}

void check_options_within_nodes(const ShardOptions& options) {
  TORCH_CHECK_VALUE(options.node_size().value_or(1) >= 1, "node_size: must be at least 1, but is ",
                    *options.node_size());
  TORCH_CHECK_VALUE(!options.parameter_format().has_value(), "parameter_format: ", *options.parameter_format(),
                    " has no effect if the optimizer is sharded within nodes");
}

void check_options_over_all(const ShardOptions& options, const GradientReducer& reducer) {
  TORCH_CHECK_VALUE(!options.node_size().has_value(), "node_size: ", *options.node_size(),
                    " has no effect if the optimizer is sharded over all ranks; nodes are those of the hook");
  TORCH_CHECK_VALUE(reducer.keeps_replicas_equal(),
                    "an optimizer can be sharded over all ranks only if they get equal "
                    "gradients, but with hook ",
                    reducer.hook_name(), " they do not");
}

// All of the optimizer's parameters must be in a bucket.
void check_buckets(const OptimizerParameters& parameters, const GradientReducer& reducer) {
  std::unordered_set<const at::TensorImpl*> averaged;
  for (const std::vector<at::Tensor>& bucket : reducer.buckets()) {
    for (const at::Tensor& parameter : bucket) {
      averaged.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    TORCH_CHECK_VALUE(averaged.contains(parameters.tensors[i].unsafeGetTensorImpl()), "parameter ", i,
                      " of the optimizer, of sizes ", parameters.tensors[i].sizes(),
                      ", is none of those whose gradients are averaged");
  }
}

std::vector<NamedValue> compared_values(const Optimizer& optimizer, const ShardOptions& options,
                                        const OptimizerParameters& parameters) {
  const sharding::OptimizerKind* const kind = sharding::kind_of(optimizer);
  const auto text_of = [](const auto& value) { return value ? c10::str(*value) : std::string("not set"); };
  std::vector<NamedValue> values = {{"whole_parameters", options.whole_parameters() ? "true" : "false"},
                                    {"node_size", text_of(options.node_size())},
                                    {"parameter_format", text_of(options.parameter_format())},
                                    {"the optimizer", kind != nullptr ? kind->name : "another one"},
                                    {"the number of parameters", c10::str(parameters.tensors.size())}};
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& parameter = parameters.tensors[i];
    values.push_back({c10::str("parameter ", i), c10::str(parameter.sizes(), " with strides ", parameter.strides(),
                                                          " in group ", parameters.groups[i])});
  }
  return values;
}

// A collective. `check` looks at the parameters as well.
OptimizerParameters agree_on_parameters(const Optimizer& inner, const ProcessGroupPtr& group,
                                        const ShardOptions& options,
                                        const std::function<void(const OptimizerParameters&)>& check) {
  OptimizerParameters parameters;
  const auto check_all = [&] {
    check_optimizer(inner, options);
    parameters = checked_parameters(inner);
    check(parameters);
  };
  TORCH_CHECK_VALUE(group->getSize() > 1, "an optimizer cannot be sharded in a group of one rank");
  collectives::agree(group, {.call = "ShardedOptimizer", .refusal = collectives::refusal_of(check_all)});
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

// A collective: the nodes over which a hook with these options averages.
std::shared_ptr<const node::FoundNodes> find_hook_nodes(const ProcessGroupPtr& group, const hooks::WireOptions& wire) {
  return wire.levels == Levels::kOne ? node::FoundNodes::flat(group->getSize())
                                     : with_network_errors(group->getRank(), "finding the ranks of each node",
                                                           [&] { return node::find_nodes(group, wire.node_size); });
}

// In fp32 the parameters themselves are sent.
std::optional<WireFormat> differences_of(const ShardOptions& options) {
  const WireFormat format = options.parameter_format().value_or(kDefaultParameterFormat);
  return format == WireFormat::kFp32 ? std::nullopt : std::optional(format);
}

}  // namespace

std::unique_ptr<sharding::ShardedParts> sharding::ShardedParts::within_nodes(Optimizer& inner,
                                                                             const ProcessGroupPtr& group,
                                                                             const ShardOptions& options) {
  OptimizerParameters parameters = agree_on_parameters(
      inner, group, options, [&](const OptimizerParameters&) { check_options_within_nodes(options); });
  ShardPlace place{.group = group,
                   .cuts_parameters = !options.whole_parameters(),
                   .exchange = std::make_unique<NodeExchange>(group, find_shared_nodes(group, options))};
  return std::make_unique<ShardedParts>(inner, std::move(parameters), std::move(place));
}

// Whole parameters have shards that the hook does not know, so it averages all elements.
std::unique_ptr<sharding::ShardedParts> sharding::ShardedParts::over_all(Optimizer& inner, GradientReducer& reducer,
                                                                         const ShardOptions& options) {
  const ProcessGroupPtr& group = reducer.process_group();
  const std::optional<WireFormat> differences = differences_of(options);
  std::vector<int64_t> node_of_rank;  // Empty if the hook averages all elements.
  OptimizerParameters parameters = agree_on_parameters(inner, group, options, [&](const OptimizerParameters& checked) {
    check_options_over_all(options, reducer);
    check_buckets(checked, reducer);
    if (!options.whole_parameters()) {
      node_of_rank = reducer.average_shards(differences ? hooks::ShardRounding::kOnce : hooks::ShardRounding::kAsWhole);
    }
  });
  auto nodes = find_hook_nodes(group, reducer.options().wire());
  node::NodeLayout layout = node_of_rank.empty() ? nodes->layout : node::NodeLayout(node_of_rank);
  if (layout != nodes->layout) {
    nodes = node::FoundNodes::flat(group->getSize());  // A hook of its own nodes. One level exchanges any shards.
  }
  auto exchange = std::make_unique<GroupExchange>(group, std::move(nodes));
  GroupExchange* const over_all = exchange.get();
  ShardPlace place{.group = group,
                   .cuts_parameters = !options.whole_parameters(),
                   .exchange = std::move(exchange),
                   .over_all = over_all,
                   .reducer = &reducer,
                   .layout = std::move(layout),
                   .differences = differences};
  return std::make_unique<ShardedParts>(inner, std::move(parameters), std::move(place));
}

ShardedOptimizer::ShardedOptimizer(Optimizer& inner, ProcessGroupPtr group, const ShardOptions& options)
    : parts_(sharding::ShardedParts::within_nodes(inner, checked_group(std::move(group)), options)) {}

ShardedOptimizer::ShardedOptimizer(Optimizer& inner, GradientReducer& reducer, const ShardOptions& options)
    : parts_(sharding::ShardedParts::over_all(inner, reducer, options)) {}

ShardedOptimizer::~ShardedOptimizer() = default;

void ShardedOptimizer::step() { parts_->step(); }

void ShardedOptimizer::zero_grad() { parts_->zero_grad(); }

double ShardedOptimizer::gradient_norm() { return parts_->gradient_norm(); }

double ShardedOptimizer::clip_gradient_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "max_norm: must be positive, but is ", max_norm);
  const double norm = parts_->gradient_norm();
  if (const double factor = clip_factor(norm, max_norm); factor != 1) {
    for (at::Tensor gradient : parts_->own_gradients()) {
      gradient.mul_(factor);
    }
  }
  return norm;
}

std::vector<at::Tensor> ShardedOptimizer::own_gradients() { return parts_->own_gradients(); }

hooks::HookState ShardedOptimizer::state(const std::vector<hooks::NamedParameter>& parameters) {
  return parts_->state(parameters);
}

void ShardedOptimizer::load_state(const hooks::HookState& saved, const std::vector<hooks::NamedParameter>& parameters) {
  parts_->load_state(saved, parameters);
}

double ShardedOptimizer::largest_difference() { return parts_->largest_difference(); }

bool ShardedOptimizer::has_masters() const { return parts_->has_masters(); }

int64_t ShardedOptimizer::payload_bytes_sent() const { return parts_->payload_bytes_sent(); }

int64_t ShardedOptimizer::elements() const { return parts_->elements(); }

int64_t ShardedOptimizer::own_elements() const { return parts_->own_elements(); }

int64_t ShardedOptimizer::shards() const { return parts_->shards(); }

}  // namespace narrowcast

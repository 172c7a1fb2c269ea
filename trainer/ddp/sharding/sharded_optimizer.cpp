#include <narrowcast/sharded_optimizer.h>

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <utility>

#include <narrowcast/consensus.h>
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/optimization/gradients.h"
#include "trainer/ddp/sharding/node_exchange.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast {
namespace {

using sharding::ShardRequest;
using torch::optim::Optimizer;

void check_options_within_nodes(const ShardOptions& options) {
  TORCH_CHECK_VALUE(!options.parameter_format().has_value(), "parameter_format: ", *options.parameter_format(),
                    " has no effect if the optimizer is sharded within nodes");
}

void check_options_over_all(const ShardOptions& options, const GradientReducer& reducer) {
  TORCH_CHECK_VALUE(!options.node_size().has_value(), "node_size: ", *options.node_size(),
                    " has no effect if the optimizer is sharded over all ranks; nodes are those of the hook");
  TORCH_CHECK_VALUE(!options.share_parameters(),
                    "share_parameters: has no effect if the optimizer is sharded over all ranks");
  TORCH_CHECK_VALUE(!reducer.averages_shards(),
                    "another optimizer is already sharded over all ranks with the same DistributedDataParallel");
  TORCH_CHECK_VALUE(reducer.keeps_replicas_equal(),
                    "an optimizer can be sharded over all ranks only if they get equal "
                    "gradients, but with hook ",
                    reducer.hook_name(), " they do not");
}

}  // namespace

std::unique_ptr<sharding::ShardedParts> sharding::ShardedParts::within_nodes(Optimizer& inner,
                                                                             const ProcessGroupPtr& group,
                                                                             const ShardOptions& options) {
  ShardRequest request = agree_on_shards(group, [&] {
    check_options_within_nodes(options);
    return shard_request(inner, options);
  });
  const auto nodes = find_shared_nodes(group, options.node_size());
  TORCH_CHECK_VALUE(options.copies() == 1 || nodes->layout.nodes() > 1, "copies: 2 copies of each shard need two ",
                    "nodes, but all ", group->getSize(), " ranks are on one");
  auto exchange = std::make_unique<NodeExchange>(group, nodes);
  NodeExchange* const within_nodes = exchange.get();
  ShardPlace place{.group = group,
                   .cuts_parameters = !options.whole_parameters(),
                   .exchange = std::move(exchange),
                   .shared = options.share_parameters() ? within_nodes : nullptr};
  return std::make_unique<ShardedParts>(inner, std::move(request), std::move(place));
}

std::unique_ptr<sharding::ShardedParts> sharding::ShardedParts::over_all(Optimizer& inner, GradientReducer& reducer,
                                                                         const ShardOptions& options) {
  const ProcessGroupPtr& group = reducer.process_group();
  ShardRequest request = agree_on_shards(group, [&] {
    check_options_over_all(options, reducer);
    ShardRequest own = shard_request(inner, options);
    check_buckets(own.parameters, reducer.buckets(), options);
    return own;
  });
  auto average_all_again = c10::make_scope_exit([&] { reducer.average_shards(std::nullopt); });
  HookShards shards = sharding::average_shards(
      group,
      {reducer.hook_name(), reducer.options().wire(),
       [&](std::optional<hooks::ShardRounding> rounding) { return reducer.average_shards(rounding); }},
      options);
  auto exchange = std::make_unique<GroupExchange>(group, std::move(shards.nodes));
  GroupExchange* const over_all = exchange.get();
  ShardPlace place{.group = group,
                   .cuts_parameters = !options.whole_parameters(),
                   .exchange = std::move(exchange),
                   .over_all = over_all,
                   .reducer = &reducer,
                   .layout = std::move(shards.layout),
                   .differences = differences_of(options)};
  if (!shards.copy_holders.empty()) {
    place.copies = std::make_unique<CopyExchange>(group, std::move(shards.copy_holders));
  }
  auto parts = std::make_unique<ShardedParts>(inner, std::move(request), std::move(place));
  average_all_again.release();
  return parts;
}

ShardedOptimizer::ShardedOptimizer(Optimizer& inner, ProcessGroupPtr group, const ShardOptions& options)
    : parts_(sharding::ShardedParts::within_nodes(inner, checked_group(std::move(group)), options)) {}

ShardedOptimizer::ShardedOptimizer(Optimizer& inner, GradientReducer& reducer, const ShardOptions& options)
    : parts_(sharding::ShardedParts::over_all(inner, reducer, options)) {}

ShardedOptimizer::~ShardedOptimizer() = default;

void ShardedOptimizer::step() { parts_->step(); }

void ShardedOptimizer::start_step() { parts_->start_step(); }

void ShardedOptimizer::wait_for(const std::vector<at::Tensor>& parameters) { parts_->wait_for(parameters); }

void ShardedOptimizer::finish_step() { parts_->finish_step(); }

void ShardedOptimizer::zero_grad() { parts_->zero_grad(); }

void ShardedOptimizer::take_parameters() { parts_->take_parameters(); }

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

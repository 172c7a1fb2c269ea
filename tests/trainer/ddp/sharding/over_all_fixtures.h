// A training whose optimizer is sharded over all ranks, or not.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "hooks/table/hook_table.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {

inline constexpr int64_t kNetWidth = 150;

// Some 45,000 parameters in three layers, the last of which has few. One more has no elements.
struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    first = register_module("first", torch::nn::Linear(kNetWidth, kNetWidth));
    second = register_module("second", torch::nn::Linear(kNetWidth, kNetWidth));
    last = register_module("last", torch::nn::Linear(kNetWidth, 3));
    nothing = register_parameter("nothing", at::zeros({0, 3}));
  }
  at::Tensor forward(const at::Tensor& x, bool skips_last) {
    const at::Tensor y = run(second, run(first, x)) + nothing.sum();
    return skips_last ? y : run(last, y);
  }
  at::Tensor run(torch::nn::Linear& layer, const at::Tensor& x) {
    if (before_layer) before_layer(*layer);
    return layer(x);
  }
  std::function<void(const torch::nn::Module&)> before_layer;
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  at::Tensor nothing;
};
TORCH_MODULE(ThreeLayers);

inline ThreeLayers made_net() {
  ThreeLayers net;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.copy_(0.1 * seeded_randn(seed++, parameter.sizes()));
  }
  return net;
}

// One rank's module with AdamW over two groups: matrices with decay, and vectors without.
struct NetTraining {
  NetTraining(const ProcessGroupPtr& group, const DdpOptions& options) : ddp(made_net(), group, options) {
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> vectors;
    for (const at::Tensor& parameter : ddp.module()->parameters()) {
      (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
    }
    const torch::optim::AdamWOptions defaults(0.01);
    OptimizerGroups groups;
    groups.emplace_back(
        matrices, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(0.1)));
    groups.emplace_back(vectors,
                        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.02).weight_decay(0)));
    adamw.emplace(std::move(groups), defaults);
  }

  at::Tensor loss_of_step(int64_t step, bool skips_last = false) {
    const auto seed = static_cast<uint64_t>(100 * step + ddp.process_group()->getRank());
    return ddp.forward(seeded_randn(seed, {4, kNetWidth}), skips_last).square().mean();
  }

  // Adds the gradients of a pass.
  void backward(int64_t step) { ddp.backward(loss_of_step(step)); }

  std::vector<at::Tensor> parameters() { return ddp.module()->parameters(); }
  std::vector<hooks::NamedParameter> named() {
    std::vector<hooks::NamedParameter> named;
    for (const auto& parameter : ddp.module()->named_parameters())
      named.push_back({parameter.key(), parameter.value()});
    return named;
  }

  DistributedDataParallel<ThreeLayers> ddp;
  std::optional<torch::optim::AdamW> adamw;
};

inline double largest_magnitude(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

inline void expect_equal_parameters(NetTraining& a, NetTraining& b, const std::string& where) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters()[i], b.parameters()[i])) << where << ", parameter " << i;
  }
}

// How gradients are averaged, besides the hook.
enum class Way { kUsual, kErrorFeedback, kExemption, kBucketViews, kStaticGraph, kUnusedParameters, kAccumulation };

struct OverAllCase {
  std::string hook;
  ShardLayout layout = {2};
  Way way = Way::kUsual;
};

inline DdpOptions ddp_options_of(const OverAllCase& value) {
  DdpOptions options = DdpOptions().hook(value.hook).bucket_cap_mb(0.05);  // Three buckets, after the first step.
  options.gradient_as_bucket_view(value.way == Way::kBucketViews).static_graph(value.way == Way::kStaticGraph);
  options.find_unused_parameters(value.way == Way::kUnusedParameters);
  hooks::WireOptions wire = options.wire();
  wire.node_size = value.layout.node_size;
  wire.error_feedback = value.way == Way::kErrorFeedback;
  wire.exempt_one_dimensional = value.way == Way::kExemption;
  if (hooks::hook_row(value.hook).takes(hooks::OptionKind::kLink)) {  // Else two trainings may measure different links.
    wire.link_gbit = 1;
    wire.link_us = 100;
  }
  return options.wire(wire);
}

// The gradients of a step; with accumulation, of two passes. Programs often clear gradients after the forward pass.
inline void compute_gradients(NetTraining& training, int64_t step, const OverAllCase& value) {
  if (value.way == Way::kAccumulation) {
    training.ddp.zero_grad();
    const auto local = training.ddp.no_sync();
    training.backward(step + 1000);
  }
  const at::Tensor loss = training.loss_of_step(step, value.way == Way::kUnusedParameters);
  if (value.way != Way::kAccumulation) training.ddp.zero_grad();
  training.ddp.backward(loss);
}

}  // namespace narrowcast::testing

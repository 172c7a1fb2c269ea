// Fixtures of tests of sharded optimizers: parameters whose gradients are equal on all ranks.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/sharded_optimizer.h>
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::testing {

using OptimizerGroups = std::vector<torch::optim::OptimizerParamGroup>;

// Makes an optimizer over two groups of parameters, each with other options.
struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>, std::vector<at::Tensor>)> make;
};

template <class Optimizer, class Options>
OptimizerCase optimizer_case(const std::string& name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> first, std::vector<at::Tensor> second) {
            OptimizerGroups groups;
            groups.emplace_back(std::move(first), std::make_unique<Options>(options));
            groups.emplace_back(std::move(second), std::make_unique<Options>(options));
            auto optimizer = std::make_unique<Optimizer>(std::move(groups), options);
            auto& other = static_cast<Options&>(optimizer->param_groups()[1].options());
            other.lr(2 * options.lr()).weight_decay(0);
            return std::unique_ptr<torch::optim::Optimizer>(std::move(optimizer));
          }};
}

inline std::vector<OptimizerCase> optimizer_cases() {
  using namespace torch::optim;
  return {optimizer_case<AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.1)),
          optimizer_case<Adam>("Adam_amsgrad", AdamOptions(0.01).weight_decay(0.1).amsgrad(true)),
          optimizer_case<SGD>("SGD", SGDOptions(0.1).weight_decay(0.1)),
          optimizer_case<SGD>("SGD_nesterov", SGDOptions(0.1).weight_decay(0.1).momentum(0.9).nesterov(true)),
          optimizer_case<RMSprop>("RMSprop", RMSpropOptions(0.01).weight_decay(0.1).momentum(0.5).centered(true))};
}

// Parameters of 0 to 3 dimensions, more than 64 elements in most; one has none, one is not contiguous, and one gets no
// gradient in the second step.
class EqualTraining {
 public:
  explicit EqualTraining(const OptimizerCase& value) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{31, 17}, {5}, {9, 4, 11}, {}, {300}, {130, 2}, {0, 3}}) {
      at::Tensor parameter = seeded_randn(parameters.size(), sizes);
      if (sizes.size() == 3) parameter = parameter.permute({2, 0, 1});
      parameters.push_back(parameter.requires_grad_());
    }
    optimizer = value.make({parameters[0], parameters[2], parameters[5]},
                           {parameters[6], parameters[1], parameters[3], parameters[4]});
  }

  void compute_gradients(int64_t step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = seeded_randn(static_cast<uint64_t>(100 * step) + i, parameters[i].sizes());
      parameters[i].mutable_grad() = step == 2 && i == 4 ? at::Tensor() : gradient;
    }
  }

  std::vector<hooks::NamedParameter> named() const {
    std::vector<hooks::NamedParameter> named;
    for (size_t i = 0; i < parameters.size(); ++i) named.push_back({"p" + std::to_string(i), parameters[i]});
    return named;
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

inline constexpr int64_t kShardSteps = 4;

// Ranks in nodes of that size, of which the last may have fewer. Without a size all ranks share a node.
struct ShardLayout {
  int64_t world_size;
  std::optional<int64_t> node_size = std::nullopt;
};

inline const std::vector<ShardLayout>& layouts() {
  static const std::vector<ShardLayout> layouts = {{2}, {3}, {4, 2}, {4, 3}, {5, 2}, {8, 4}, {8}};
  return layouts;
}

inline ShardOptions options_of(const ShardLayout& layout) { return ShardOptions().node_size(layout.node_size); }

// The steps of the optimizer itself, on one rank.
inline EqualTraining trained_alone(const OptimizerCase& value, int64_t steps) {
  EqualTraining training(value);
  for (int64_t step = 1; step <= steps; ++step) {
    training.compute_gradients(step);
    training.optimizer->step();
  }
  return training;
}

}  // namespace narrowcast::testing

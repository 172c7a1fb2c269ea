// A few parameters with a Muon optimizer.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/muon.h>
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::optim {

inline MuonOptions in_float32(double lr = 0.1) { return MuonOptions(lr).ns_dtype(at::kFloat); }

inline at::Tensor made(uint64_t seed, at::IntArrayRef sizes) {
  return testing::seeded_randn(seed, sizes).requires_grad_();
}

// Two matrices, a wide and a tall one, for Muon, and two other parameters for AdamW.
struct SmallModel {
  explicit SmallModel(const MuonOptions& options = in_float32()) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{6, 20}, {17, 4}, {9, 3}, {5}}) {
      parameters.push_back(made(parameters.size() + 1, sizes));
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[1]}, std::make_unique<MuonOptions>(options));
    groups.emplace_back(std::vector<at::Tensor>{parameters[2], parameters[3]},
                        std::make_unique<torch::optim::AdamWOptions>(
                            torch::optim::AdamWOptions(0.02).betas({0.8, 0.95}).weight_decay(0.1)));
    optimizer = std::make_unique<Muon>(groups);
  }
  void compute_gradients(uint64_t step, double scale = 1) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = testing::seeded_randn(100 * step + i, parameters[i].sizes()).mul_(scale);
    }
  }
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Muon> optimizer;
};

inline void expect_equal(const SmallModel& a, const SmallModel& b) {
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters[i], b.parameters[i])) << "parameter " << i;
  }
}

}  // namespace narrowcast::optim

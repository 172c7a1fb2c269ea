// Compares the gradients of SmallPackage's compiled training step with those of eager PyTorch.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

#include <narrowcast/models.h>
#include "models/imported/package_model.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {

using State = std::map<std::string, at::Tensor>;

// Loads the package. Its file is gone afterwards.
inline std::shared_ptr<models::PackageModel> model_of(const SmallPackage& package) {
  const TemporaryFolder folder;
  return std::dynamic_pointer_cast<models::PackageModel>(models::load_package(package.write(folder / "net.pt2")));
}

// Copies of parameters and buffers by name. Parameters require gradients as in the model.
inline State copy_of(const torch::nn::Module& model) {
  State state;
  for (const auto& parameter : model.named_parameters()) {
    state[parameter.key()] = parameter.value().detach().clone().requires_grad_(parameter.value().requires_grad());
  }
  for (const auto& buffer : model.named_buffers()) {
    state[buffer.key()] = buffer.value().clone();
  }
  return state;
}

// Gradients of the eager loss, times `factor`.
inline State eager_gradients(const State& state, const models::Batch& batch, double factor = 1) {
  (eager_loss(state, batch) * factor).backward();
  State gradients;
  for (const auto& [name, tensor] : state) {
    if (tensor.grad().defined()) gradients[name] = tensor.grad();
  }
  return gradients;
}

// The gradients of the model are those of eager PyTorch, except for rounding, and no other parameter has one.
inline void expect_gradients(const torch::nn::Module& model, const State& expected) {
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    const auto found = expected.find(parameter.key());
    ASSERT_EQ(gradient.defined(), found != expected.end()) << parameter.key();
    if (!gradient.defined()) continue;
    EXPECT_TRUE(gradient.allclose(found->second, 1e-5, 1e-6)) << parameter.key() << "\n" << gradient << found->second;
    EXPECT_TRUE(gradient.is_contiguous()) << parameter.key();
  }
}

// No gradient shares memory with another one, with a parameter or with a buffer.
inline void expect_separate_memory(const torch::nn::Module& model) {
  std::map<const void*, std::string> names;
  const auto expect_new = [&](const at::Tensor& tensor, const std::string& name) {
    const auto [known, is_new] = names.emplace(tensor.storage().data(), name);
    EXPECT_TRUE(is_new) << name << " shares the memory of " << known->second;
    EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes()) << name;
  };
  for (const auto& parameter : model.named_parameters()) {
    expect_new(parameter.value(), parameter.key());
    if (parameter.value().grad().defined()) expect_new(parameter.value().grad(), "the gradient of " + parameter.key());
  }
  for (const auto& buffer : model.named_buffers()) expect_new(buffer.value(), buffer.key());
}

}  // namespace narrowcast::testing

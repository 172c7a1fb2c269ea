// Fixtures of tests of outer optimizers: a training of a few numbers, in which every step is known.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/outer_optimizer.h>
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::testing {

// Wire options for ranks on threads of one machine. Every rank is a node, because otherwise nothing would be sent. The
// link is given, so it is not measured.
inline hooks::WireOptions outer_wire(WireFormat format = WireFormat::kFp32) {
  return {
      .format = format, .error_feedback = format != WireFormat::kFp32, .node_size = 1, .link_gbit = 10, .link_us = 50};
}

inline OuterOptions outer_options(int64_t sync_every) {
  return OuterOptions().sync_every(sync_every).wire(outer_wire());
}

inline constexpr double kInnerRate = 0.125;
inline constexpr double kUnit = 1.0 / (1 << 24);  // The unit roundoff u of float32.

// One rank's parameters: 51 elements in tensors of one to three dimensions, one of them not contiguous. The loss is
// half the squared distance to a point that differs by rank, so the gradient is the difference.
class SmallTraining {
 public:
  explicit SmallTraining(int64_t rank) {
    const auto add = [&](const at::Tensor& parameter) {
      targets_.push_back(seeded_randn(100 + static_cast<uint64_t>(rank) * 10 + targets_.size(), parameter.sizes()));
      parameters.push_back(parameter.requires_grad_());
    };
    add(seeded_randn(1, {5, 7}));
    add(seeded_randn(2, {3}));
    add(seeded_randn(3, {2, 2, 3}).permute({2, 0, 1}));
    add(seeded_randn(4, {1}));
    inner = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(kInnerRate));
  }

  void compute_gradients() {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = parameters[i].detach() - targets_[i];
    }
  }

  void step(OuterOptimizer& outer) {
    compute_gradients();
    outer.step();
  }

  // float32 [51], in the order of the outer optimizer, which is the order of memory.
  at::Tensor flat() const { return flatten(parameters); }
  at::Tensor flat_target() const {
    std::vector<at::Tensor> laid_out;
    for (size_t i = 0; i < parameters.size(); ++i) {
      laid_out.push_back(at::empty_like(parameters[i]).copy_(targets_[i]));
    }
    return flatten(laid_out);
  }

  void set(const at::Tensor& flat) {
    int64_t begin = 0;
    for (const at::Tensor& parameter : parameters) {
      in_memory(parameter).copy_(flat.narrow(0, begin, parameter.numel()));
      begin += parameter.numel();
    }
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::SGD> inner;

 private:
  static at::Tensor in_memory(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}); }
  static at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(in_memory(tensor));
    return at::cat(flat);
  }

  std::vector<at::Tensor> targets_;
};

// A collective: every rank's values, by rank.
inline std::vector<at::Tensor> gathered(const ProcessGroupPtr& group, const at::Tensor& values) {
  std::vector<at::Tensor> all;
  for (const std::string& bytes : all_gather_text(group, bytes_of({values}))) {
    const at::Tensor one = at::empty_like(values);
    std::memcpy(one.mutable_data_ptr(), bytes.data(), bytes.size());
    all.push_back(one);
  }
  return all;
}

inline hooks::HookState deep_copy(const hooks::HookState& state) {
  hooks::HookState copy;
  for (const auto& [name, tensor] : state) copy.emplace(name, tensor.clone());
  return copy;
}

// Saved state of one rank.
struct SavedRank {
  OuterState outer;
  at::Tensor parameters;
};

inline SavedRank saved(SmallTraining& training, OuterOptimizer& outer) {
  OuterState state = outer.state();
  state.replica = deep_copy(state.replica);
  state.rank.states[0] = deep_copy(state.rank.states[0]);
  return {state, training.flat()};
}

}  // namespace narrowcast::testing

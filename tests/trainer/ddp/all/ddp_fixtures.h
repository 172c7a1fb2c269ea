// Fixtures of tests of data-parallel training: a small module, its data, and averages of gradients computed without
// DistributedDataParallel.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp_options.h>

namespace narrowcast::testing {

// Uses a separate generator, because ranks on threads share LibTorch's default one.
inline at::Tensor seeded_randn(uint64_t seed, at::IntArrayRef sizes) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

// Two layers and an optional third one. 8 numbers in, 4 out.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 4));
    optional = register_module("optional", torch::nn::Linear(4, 4));
  }

  at::Tensor forward(const at::Tensor& x, bool with_optional = true) {
    const at::Tensor y = second(at::tanh(first(x)));
    return with_optional ? optional(y) : y;
  }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear optional{nullptr};
};
TORCH_MODULE(SmallNet);

struct Sample {
  at::Tensor x;
  at::Tensor y;
};

// The sample of `rank` in `step`.
inline Sample sample_of(int64_t step, int64_t rank) {
  const uint64_t seed = static_cast<uint64_t>(1000 * step + 10 * rank);
  return {seeded_randn(seed, {6, 8}), seeded_randn(seed + 1, {6, 4})};
}

inline at::Tensor loss_of(const at::Tensor& output, const Sample& sample) {
  return (output - sample.y).square().mean();
}

// Gradients of `loss` without touching any parameter's grad; undefined where unused.
inline std::vector<at::Tensor> gradients_of(const at::Tensor& loss, const std::vector<at::Tensor>& parameters) {
  return torch::autograd::grad({loss}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

inline std::vector<at::Tensor> gradients_in(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

// The mean that the Reducer computes without a hook: the sum of g_r * (1 / W) in rank order. `by_rank` holds one tensor
// per rank; undefined tensors count as zero.
inline at::Tensor mean_over_ranks(const std::vector<at::Tensor>& by_rank) {
  at::Tensor sum;
  for (const at::Tensor& gradient : by_rank) {
    if (!gradient.defined()) continue;
    const at::Tensor share = gradient * (1.0 / static_cast<double>(by_rank.size()));
    sum = sum.defined() ? sum + share : share;
  }
  return sum;
}

// True if `actual` can result from adding the shares in another order. The error of each order is at most (W - 1) 2^-24
// times the sum of magnitudes (to first order), so two orders differ by at most twice that. The difference is zero for
// W = 1, and for W = 2, because an addition of two numbers commutes.
inline bool is_mean_over_ranks(const at::Tensor& actual, const std::vector<at::Tensor>& by_rank) {
  const at::Tensor expected = mean_over_ranks(by_rank);
  if (!expected.defined() || !actual.defined()) return expected.defined() == actual.defined();
  if (by_rank.size() <= 2) return at::equal(actual, expected);
  at::Tensor magnitudes = at::zeros_like(expected);
  for (const at::Tensor& gradient : by_rank) {
    if (gradient.defined()) magnitudes += gradient.abs() / static_cast<double>(by_rank.size());
  }
  const double unit = 1.0 / (1 << 24);
  const double factor = 2.0 * static_cast<double>(by_rank.size() - 1) * unit;
  return (actual - expected).abs().le(magnitudes * factor).all().item<bool>();
}

// The bytes of `tensors`, one after another.
inline std::string bytes_of(const std::vector<at::Tensor>& tensors) {
  std::string bytes;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.detach().contiguous();
    bytes.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
  }
  return bytes;
}

// A collective: whether all ranks hold the same bits.
inline bool same_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  const std::string own = bytes_of(tensors);
  bool same = true;
  for (const std::string& other : all_gather_text(group, own)) same = same && other == own;
  return same;
}

inline void descend(const std::vector<at::Tensor>& parameters, double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad() * learning_rate);
  }
}

struct Mode {
  std::string name;
  DdpOptions options;
};

// Bucket caps so small that each parameter has a separate bucket.
inline constexpr double kTinyMb = 1e-5;

inline std::vector<Mode> all_modes() {
  std::vector<Mode> modes = {
      {"defaults", DdpOptions()},
      {"one_bucket_per_parameter", DdpOptions().bucket_cap_mb(kTinyMb)},
      {"find_unused_parameters", DdpOptions().find_unused_parameters(true)},
      {"find_unused_parameters_in_many_buckets", DdpOptions().find_unused_parameters(true).bucket_cap_mb(kTinyMb)},
      {"static_graph", DdpOptions().static_graph(true)},
      {"static_graph_in_many_buckets", DdpOptions().static_graph(true).bucket_cap_mb(kTinyMb)}};
  const size_t count = modes.size();
  for (size_t i = 0; i < count; ++i) {
    modes.push_back({modes[i].name + "_as_bucket_view", DdpOptions(modes[i].options).gradient_as_bucket_view(true)});
  }
  return modes;
}

inline std::vector<Mode> modes_that_allow_unused_parameters() {
  std::vector<Mode> modes;
  for (const Mode& mode : all_modes()) {
    if (mode.options.find_unused_parameters() || mode.options.static_graph()) modes.push_back(mode);
  }
  return modes;
}

}  // namespace narrowcast::testing

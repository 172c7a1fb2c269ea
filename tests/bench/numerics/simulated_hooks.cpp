#include "tests/bench/numerics/simulated_hooks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include <narrowcast/affine_uint8.h>
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"

namespace narrowcast::bench {
namespace {

using collectives::Route;

at::Tensor per_tensor_round_trip(const at::Tensor& x) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  return dequantize_per_tensor(quantize_per_tensor(x, scale, zero_point), scale, zero_point);
}

at::Tensor per_channel_round_trip(const at::Tensor& x) {
  constexpr int64_t kChannel = 512;
  const at::Tensor channels = at::constant_pad_nd(x, {0, kChannel - x.numel() % kChannel}, 0).view({-1, kChannel});
  const auto [scales, zero_points] = choose_qparams_per_channel(channels);
  const at::Tensor codes = quantize_per_channel(channels, scales, zero_points);
  return dequantize_per_channel(codes, scales, zero_points).flatten().narrow(0, 0, x.numel());
}

MeanOfRanks gathered(at::Tensor (*round_trip)(const at::Tensor&)) {
  return [round_trip](const StepGradients& step) {
    std::vector<at::Tensor> decoded;
    for (const at::Tensor& gradients : step.by_rank) decoded.push_back(round_trip(gradients));
    return exact_mean(decoded);
  };
}

// Divides before it sums, both in `dtype`.
MeanOfRanks compressed(at::ScalarType dtype) {
  return [dtype](const StepGradients& step) {
    const auto ranks = static_cast<int64_t>(step.by_rank.size());
    at::Tensor sum = at::zeros_like(step.by_rank[0], dtype);
    for (const at::Tensor& gradients : step.by_rank) sum += gradients.to(dtype) / ranks;
    return sum.to(at::kFloat);
  };
}

MeanOfRanks on_the_wire(WireFormat format) {
  return [format](const StepGradients& step) { return wire_mean(step.by_rank, format); };
}

// The exact mean with 0 where the format rounds to 0: shows how much of a format's effect comes from zeros alone.
MeanOfRanks zeros_of(WireFormat format) {
  return [format](const StepGradients& step) {
    return exact_mean(step.by_rank).masked_fill_(wire_mean(step.by_rank, format).eq(0), 0);
  };
}

// Error feedback on both hops, with messages of all elements: the rounding error of a step is added in the next one.
class FedBack {
 public:
  explicit FedBack(WireFormat format) : format_(format) {}

  at::Tensor operator()(const StepGradients& step) {
    const std::vector<at::Tensor>& by_rank = step.by_rank;
    lacking_.resize(by_rank.size() + 1);
    std::vector<at::Tensor> received;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) received.push_back(passed_on(by_rank[rank], lacking_[rank]));
    return passed_on(exact_mean(received), lacking_.back());
  }

 private:
  at::Tensor passed_on(const at::Tensor& x, at::Tensor& lacking) const {
    const at::Tensor sent = lacking.defined() ? x + lacking : x.clone();
    at::Tensor received = decode(encode(sent, format_), format_, sent.numel());
    lacking = sent - received;
    return received;
  }

  const WireFormat format_;
  std::vector<at::Tensor> lacking_ = {};  // Residuals by rank, and last the mean's.
};

// Multiplies each parameter's gradient by a weight before encoding, and divides by it afterwards. The weight is a power
// of two near (root mean square of all elements / the parameter's own)^power in the last mean, which all ranks know.
// With a power of 1, the quantisation step relative to the gradient is the same for parameters with small and with
// large gradients. Weights are from 2^-kMostOf to 2^kMostOf, and 1 for a parameter whose mean was 0 or not finite.
class Weighted {
 public:
  Weighted(WireFormat format, double power) : format_(format), power_(power) {}

  at::Tensor operator()(const StepGradients& step) {
    if (!weights_.defined()) weights_ = at::ones_like(step.by_rank[0]);
    std::vector<at::Tensor> weighted;
    for (const at::Tensor& gradients : step.by_rank) weighted.push_back(gradients * weights_);
    at::Tensor mean = wire_mean(weighted, format_) / weights_;
    weigh(mean, step.sizes);
    return mean;
  }

 private:
  void weigh(const at::Tensor& mean, const std::vector<int64_t>& sizes) {
    const auto size_of = [](const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); };
    const double of_all = size_of(mean);
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      const double own = size_of(mean.narrow(0, begin, size));
      const double ratio = own > 0 ? of_all / own : 1;
      const double exponent = std::isfinite(ratio) ? std::round(power_ * std::log2(ratio)) : 0;
      weights_.narrow(0, begin, size).fill_(std::exp2(std::clamp(exponent, -kMostOf, kMostOf)));
      begin += size;
    }
  }

  static constexpr double kMostOf = 12;
  const WireFormat format_;
  const double power_;
  at::Tensor weights_ = {};
};

}  // namespace

at::Tensor exact_mean(const std::vector<at::Tensor>& by_rank) { return collectives::mean_in_rank_order(by_rank); }

at::Tensor no_hook(const StepGradients& gradients) { return exact_mean(gradients.by_rank); }

at::Tensor wire_mean(const std::vector<at::Tensor>& by_rank, WireFormat format, const collectives::LinkCost& link) {
  const auto ranks = static_cast<int64_t>(by_rank.size());
  const bool two_shots = collectives::choose_route(by_rank[0].numel(), ranks, format, link) == Route::kTwoShot;
  return two_shots ? collectives::two_shot_mean({format}, by_rank) : collectives::one_shot_mean({format}, by_rank);
}

std::vector<SimulatedHook> simulated_hooks() {
  std::vector<SimulatedHook> hooks{{"fp16_compress", compressed(at::kHalf), INFINITY},
                                   {"bf16_compress", compressed(at::kBFloat16), INFINITY},
                                   {"quantize_per_tensor", gathered(per_tensor_round_trip), INFINITY},
                                   {"quantize_per_channel", gathered(per_channel_round_trip), INFINITY}};
  for (const WireFormat format : collectives::two_shot_formats()) {
    const double most_lost = format == WireFormat::kInt4B32 || format == WireFormat::kVar3 ? 4e-3
                             : format == WireFormat::kVar4                                 ? 2e-3
                                                                                           : 1e-3;
    hooks.push_back({std::string(to_string(format)), on_the_wire(format), most_lost});
  }
  for (const WireFormat format : {WireFormat::kVar6, WireFormat::kVar5, WireFormat::kVar4}) {
    hooks.push_back({"zeros_of_" + std::string(to_string(format)), zeros_of(format), INFINITY});
  }
  for (const WireFormat format : {WireFormat::kVar5, WireFormat::kVar4, WireFormat::kVar3, WireFormat::kInt4B32}) {
    hooks.push_back({"fed_back_" + std::string(to_string(format)), FedBack(format), INFINITY});
  }
  for (const WireFormat format : {WireFormat::kVar5, WireFormat::kVar4, WireFormat::kVar3}) {
    const std::string name(to_string(format));
    hooks.push_back({"weighted_" + name, Weighted(format, 1), INFINITY});
    hooks.push_back({"half_weighted_" + name, Weighted(format, 0.5), INFINITY});
  }
  return hooks;
}

}  // namespace narrowcast::bench

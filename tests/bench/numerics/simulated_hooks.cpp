#include "tests/bench/numerics/simulated_hooks.h"

#include <ATen/ATen.h>

#include <cmath>

#include <narrowcast/affine_uint8.h>
#include "ops/collectives/mean/mean_exchange.h"
#include "tests/ops/collectives/mean/reference_mean.h"

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
  return [round_trip](const std::vector<at::Tensor>& by_rank) {
    std::vector<at::Tensor> decoded;
    for (const at::Tensor& gradients : by_rank) decoded.push_back(round_trip(gradients));
    return exact_mean(decoded);
  };
}

// Divided before they are summed, both in `dtype`.
MeanOfRanks compressed(at::ScalarType dtype) {
  return [dtype](const std::vector<at::Tensor>& by_rank) {
    at::Tensor sum = at::zeros_like(by_rank[0], dtype);
    for (const at::Tensor& gradients : by_rank) sum += gradients.to(dtype) / static_cast<int64_t>(by_rank.size());
    return sum.to(at::kFloat);
  };
}

MeanOfRanks on_the_wire(WireFormat format) {
  return [format](const std::vector<at::Tensor>& by_rank) { return wire_mean(by_rank, format); };
}

// The exact mean, but 0 where the format makes 0 of it: what of a format's effect comes from zeros alone.
MeanOfRanks zeros_of(WireFormat format) {
  return [format](const std::vector<at::Tensor>& by_rank) {
    return exact_mean(by_rank).masked_fill_(wire_mean(by_rank, format).eq(0), 0);
  };
}

// Error feedback on both hops, each message of which has all elements: what rounding leaves out is added in the next
// step.
class FedBack {
 public:
  explicit FedBack(WireFormat format) : format_(format) {}

  at::Tensor operator()(const std::vector<at::Tensor>& by_rank) {
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
  std::vector<at::Tensor> lacking_ = {};  // By rank, and last of the mean.
};

}  // namespace

at::Tensor exact_mean(const std::vector<at::Tensor>& by_rank) { return collectives::mean_in_rank_order(by_rank); }

at::Tensor wire_mean(const std::vector<at::Tensor>& by_rank, WireFormat format) {
  const auto ranks = static_cast<int64_t>(by_rank.size());
  const bool two_shots = collectives::choose_route(by_rank[0].numel(), ranks, format) == Route::kTwoShot;
  return two_shots ? collectives::two_shot_mean({format}, by_rank) : collectives::one_shot_mean({format}, by_rank);
}

std::vector<SimulatedHook> simulated_hooks() {
  std::vector<SimulatedHook> hooks{{"fp16_compress", compressed(at::kHalf), INFINITY},
                                   {"bf16_compress", compressed(at::kBFloat16), INFINITY},
                                   {"quantize_per_tensor", gathered(per_tensor_round_trip), INFINITY},
                                   {"quantize_per_channel", gathered(per_channel_round_trip), INFINITY}};
  for (const WireFormat format : kWireFormats) {
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
  return hooks;
}

}  // namespace narrowcast::bench

// The quantised reduce-scatter, one tensor operation after the other.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include <narrowcast/reduction.h>
#include <narrowcast/wire_format.h>

namespace narrowcast::test {

struct PlainReduceScatter {
  WireFormat format = WireFormat::kFp32;
  Reduction reduction = Reduction::kMean;
  at::ScalarType dtype = at::kFloat;  // The shard's.

  // The shard, [n], of `rank`. `inputs`: by rank, each with W n elements.
  at::Tensor shard_of(int64_t rank, const std::vector<at::Tensor>& inputs) const {
    const auto ranks = static_cast<int64_t>(inputs.size());
    const int64_t numel = inputs[0].numel() / ranks;
    at::Tensor sum;
    for (const at::Tensor& input : inputs) {
      const at::Tensor part = input.reshape({-1}).narrow(0, rank * numel, numel);
      const at::Tensor decoded = ranks == 1 ? part : decode(encode(part, format), format, numel);
      sum = sum.defined() ? sum + decoded : decoded;
    }
    return (reduction == Reduction::kMean ? sum / ranks : sum).to(dtype);
  }
};

// Inputs by rank, the same in every process: [ranks, shard_numel] each.
inline std::vector<at::Tensor> reduce_scatter_inputs(int64_t ranks, int64_t shard_numel,
                                                     at::ScalarType dtype = at::kFloat) {
  at::manual_seed(7);
  std::vector<at::Tensor> inputs;
  for (int64_t rank = 0; rank < ranks; ++rank) inputs.push_back(at::randn({ranks, shard_numel}).to(dtype));
  return inputs;
}

inline constexpr std::array kReductions{Reduction::kMean, Reduction::kSum};

}  // namespace narrowcast::test

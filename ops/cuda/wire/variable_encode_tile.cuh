// Encodes the numbers of a warp's tile as codes of a message whose headers are known.
#pragma once

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cuda/launch/vectors.h"
#include "ops/cuda/wire/array_tile.cuh"
#include "ops/cuda/wire/variable_tile.cuh"

namespace narrowcast::cuda {

// The step of the lane's block, and its inverse. The inverse is 0 if the block has no words, so that all its codes are
// 0 even with stochastic rounding.
struct BlockStep {
  float value;
  float inverse;

  __device__ __forceinline__ explicit BlockStep(const TileHeader& header)
      : value(header.block_step()), inverse(codec::wire::width_of_header(header.of_block) > 0 ? 1.0F / value : 0.0F) {}
};

// Writes the words of a tile to a buffer. code_of(y, i) is the code of element i of the tile, where y is the element
// over its block's step. Each lane passes the step of its block.
template <class Source, class CodeOf>
__device__ __forceinline__ void encode_tile(const Source& source, const VariableTile& tile, const BlockStep& of_lane,
                                            uint32_t* words, const CodeOf& code_of) {
  constexpr int kAtOnce = 8;
  const BitSquare square(tile.lane);
  const auto encoded = [&](int block, float value) {
    const float inverse = __shfl_sync(kAllLanes, of_lane.inverse, block);
    const float y = inverse != 0 ? value * inverse : 0.0F;  // In a message of NaN the value may be a NaN.
    const int32_t code = code_of(y, block * kWarpSize + tile.lane);
    if constexpr (Source::kHasResidual) {
      const float step = __shfl_sync(kAllLanes, of_lane.value, block);
      source.keep_lacking(block, value, step * static_cast<float>(code));
    }
    return code;
  };
  for (int first = 0; first < kTileBlocks; first += kAtOnce) {
    float values[kAtOnce];
    NARROWCAST_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      values[k] = source.at(first + k);
    }
    NARROWCAST_UNROLL
    for (int k = 0; k < kAtOnce; k += 2) {
      const int32_t even = encoded(first + k, values[k]);
      put_codes(BlockPair(tile, first + k), square, even, encoded(first + k + 1, values[k + 1]), words);
    }
  }
}

}  // namespace narrowcast::cuda

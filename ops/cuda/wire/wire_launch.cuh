// Run-time choices of the wire kernels as types.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ops/codec/wire_format.h"
#include "ops/cuda/wire/array_elements.cuh"
#include "ops/cuda/wire/wire_arguments.h"
#include "ops/cuda/wire/wire_tile.cuh"

namespace narrowcast::cuda {

inline void check_type(FloatType type) {
  if (type < FloatType::kFloat32 || type > FloatType::kFloat16) {
    throw std::invalid_argument("no FloatType");
  }
}

// Blocks of kThreadsPerBlock threads that n elements take, a tile per warp.
inline unsigned blocks_for(int64_t n) {
  constexpr int64_t kPerBlock = int64_t{kTile} * kWarpsPerBlock;
  return static_cast<unsigned>((n + kPerBlock - 1) / kPerBlock);
}

inline void check_parts(const RankParts& parts) {
  check_type(parts.type);
  if (parts.ranks < 1 || parts.ranks > kMaxRanks) {
    throw std::invalid_argument("a mean on a GPU is of 1 to " + std::to_string(kMaxRanks) + " ranks, not of " +
                                std::to_string(parts.ranks));
  }
  if (parts.own_rank < 0 || parts.own_rank > parts.ranks) {
    throw std::invalid_argument("own_rank is " + std::to_string(parts.own_rank) + " of " + std::to_string(parts.ranks));
  }
}

}  // namespace narrowcast::cuda

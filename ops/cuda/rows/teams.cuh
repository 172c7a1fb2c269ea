// The threads that work on one part of a row: a warp for short parts, a block for long ones.
#pragma once

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

#include "ops/cuda/rows/lane.h"

namespace narrowcast::cuda {

inline constexpr int kBlockThreads = 256;

struct WarpTeam {
  static constexpr int kThreads = 32;
  static constexpr int kPerBlock = kBlockThreads / kThreads;
  template <class T>
  using Reduce = cub::WarpReduce<T>;

  __device__ static Lane lane() { return {static_cast<int>(threadIdx.x) % kThreads, kThreads}; }
  __device__ static int in_block() { return static_cast<int>(threadIdx.x) / kThreads; }
};

struct BlockTeam {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kPerBlock = 1;
  template <class T>
  using Reduce = cub::BlockReduce<T, kThreads>;

  __device__ static Lane lane() { return {static_cast<int>(threadIdx.x), kThreads}; }
  __device__ static int in_block() { return 0; }
};

// This thread's team among all of the grid.
template <class Team>
__device__ int64_t team_index() {
  return (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * Team::kPerBlock + Team::in_block();
}

// Blocks for so many teams at least: one dimension of a grid has too few for any number.
template <class Team>
dim3 grid_for(int64_t teams) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = (teams + Team::kPerBlock - 1) / Team::kPerBlock;
  const int64_t width = blocks < kMost ? blocks : kMost;
  return {static_cast<unsigned int>(width), static_cast<unsigned int>((blocks + width - 1) / width), 1};
}

}  // namespace narrowcast::cuda

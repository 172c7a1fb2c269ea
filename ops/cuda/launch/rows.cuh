// Launches over rows: an elementwise operation on all of them, or a reduction of each row to one value. A team of
// threads works on each part of a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda {

// Threads per block in all of these launches.
inline constexpr int kBlockThreads = 256;

// A team for short parts.
struct WarpTeam {
  static constexpr int kThreads = 32;
  static constexpr int kPerBlock = kBlockThreads / kThreads;
  template <class T>
  using Reduce = cub::WarpReduce<T>;

  __device__ static Lane lane() { return {static_cast<int>(threadIdx.x) % kThreads, kThreads}; }
  __device__ static int in_block() { return static_cast<int>(threadIdx.x) / kThreads; }
};

// A team for long parts.
struct BlockTeam {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kPerBlock = 1;
  template <class T>
  using Reduce = cub::BlockReduce<T, kThreads>;

  __device__ static Lane lane() { return {static_cast<int>(threadIdx.x), kThreads}; }
  __device__ static int in_block() { return 0; }
};

// The index of this thread's team in the grid.
template <class Team>
__device__ int64_t team_index() {
  return (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * Team::kPerBlock + Team::in_block();
}

// A grid with blocks for at least `teams` teams. It has two dimensions, since one has too few blocks for any number.
template <class Team>
dim3 grid_for(int64_t teams) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t blocks = (teams + Team::kPerBlock - 1) / Team::kPerBlock;
  const int64_t width = blocks < kMost ? blocks : kMost;
  return {static_cast<unsigned int>(width), static_cast<unsigned int>((blocks + width - 1) / width), 1};
}

// A team per part of a row.
template <class Team, class Operation>
__global__ void __launch_bounds__(kBlockThreads) for_each_part_kernel(RowParts parts, Operation operation) {
  const int64_t index = team_index<Team>();
  if (index < parts.count()) operation(parts.at(index), Team::lane());
}

// Calls operation(RowPart, Lane) on the device for every part, by every lane of the part's team. There is at least one
// part. Operation::kPart is the number of elements that suits a block. A warp processes rows of up to a quarter of it,
// and rows of up to all of it if there are many parts. Then a lane has several packs, for which it reads the row's
// numbers once.
template <class Operation>
void launch_for_each_part(const Operation& operation, const RowParts& parts, Stream stream, const char* name) {
  constexpr int64_t kManyParts = 1 << 14;  // Enough warps to keep any GPU busy.
  const bool is_short = parts.row_size <= Operation::kPart / (parts.count() < kManyParts ? 4 : 1);
  checked_launch(name, [&] {
    if (is_short) {
      for_each_part_kernel<WarpTeam><<<grid_for<WarpTeam>(parts.count()), kBlockThreads, 0, stream>>>(parts, operation);
    } else {
      for_each_part_kernel<BlockTeam>
          <<<grid_for<BlockTeam>(parts.count()), kBlockThreads, 0, stream>>>(parts, operation);
    }
  });
}

// The same for all of `rows` rows of `row_size` elements each.
template <class Operation>
void launch_for_each_part(const Operation& operation, int64_t rows, int64_t row_size, Stream stream, const char* name) {
  if (rows == 0 || row_size == 0) return;
  launch_for_each_part(operation, share_rows(rows, row_size, Operation::kPart), stream, name);
}

// Merges two Partials of reduce_share; called by CUB.
struct Merge {
  template <class Partial>
  __device__ Partial operator()(const Partial& a, const Partial& b) const {
    return merge(a, b);
  }
};

// One team per part of a row. It finishes the row if that has only one part, else stores its partial result.
template <class Team, class T, class Partial, class Finish>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_parts_kernel(const T* x, RowParts parts, Partial* partials, Finish finish) {
  using Reduce = typename Team::template Reduce<Partial>;
  __shared__ typename Reduce::TempStorage storage[Team::kPerBlock];
  const int64_t index = team_index<Team>();
  if (index >= parts.count()) return;  // True for all lanes of the team or for none.
  const RowPart part = parts.at(index);
  const Partial own = reduce_share<Partial>(x + part.first, part.size, Team::lane());
  const Partial total = Reduce(storage[Team::in_block()]).Reduce(own, Merge());  // Valid in lane 0.
  if (Team::lane().rank != 0) return;
  if (parts.per_row == 1) {
    finish(part.row, total);
  } else {
    partials[index] = total;
  }
}

// One block per row merges the partial results of the row's parts.
template <class Partial, class Finish>
__global__ void __launch_bounds__(kBlockThreads)
    merge_parts_kernel(const Partial* partials, int64_t rows, int64_t per_row, Finish finish) {
  using Reduce = BlockTeam::Reduce<Partial>;
  __shared__ typename Reduce::TempStorage storage;
  const int64_t row = team_index<BlockTeam>();
  if (row >= rows) return;  // True for the whole block or for no thread of it.
  Partial own;
  for (int64_t i = threadIdx.x; i < per_row; i += kBlockThreads) own = merge(own, partials[row * per_row + i]);
  const Partial total = Reduce(storage).Reduce(own, Merge());  // Valid in thread 0.
  if (threadIdx.x == 0) finish(row, total);
}

// Number of Partials that launch_reduce_rows needs memory for.
inline int64_t partials_for_rows(int64_t rows, int64_t row_size) {
  const RowParts parts = share_rows_for_reduction(rows, row_size);
  return parts.per_row == 1 ? 0 : parts.count();
}

// Calls finish(row, Partial of all its elements) on the device, by one thread for each row; a row has at least one
// element. If rows have several parts, a block per row merges their partial results. `partials` has room for
// partials_for_rows(x.rows, x.row_size).
template <class T, class Partial, class Finish>
void launch_reduce_rows(const FloatRows& x, Partial* partials, const Finish& finish, Stream stream, const char* name) {
  constexpr int64_t kMostOfWarp = 1024;
  if (x.rows == 0) return;
  const auto* const values = static_cast<const T*>(x.x);
  const RowParts parts = share_rows_for_reduction(x.rows, x.row_size);
  checked_launch(name, [&] {
    if (x.row_size <= kMostOfWarp) {
      reduce_parts_kernel<WarpTeam>
          <<<grid_for<WarpTeam>(parts.count()), kBlockThreads, 0, stream>>>(values, parts, partials, finish);
    } else {
      reduce_parts_kernel<BlockTeam>
          <<<grid_for<BlockTeam>(parts.count()), kBlockThreads, 0, stream>>>(values, parts, partials, finish);
    }
  });
  if (parts.per_row > 1) {
    checked_launch(name, [&] {
      merge_parts_kernel<<<grid_for<BlockTeam>(x.rows), kBlockThreads, 0, stream>>>(partials, x.rows, parts.per_row,
                                                                                    finish);
    });
  }
}

}  // namespace narrowcast::cuda

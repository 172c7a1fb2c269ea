// One value per row out of all its elements: each team of threads reduces a part of
// a row; where rows have several parts, a block per row merges what they found.
// reduce_share.h tells what a Partial is. Finish is called with (row, Partial) by one
// thread per row and writes the row's results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/float_type.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/rows/reduce_share.h"
#include "ops/cuda/rows/row_parts.h"
#include "ops/cuda/rows/teams.cuh"

namespace narrowcast::cuda {

struct Merge {
  template <class Partial>
  __device__ Partial operator()(const Partial& a, const Partial& b) const {
    return merge(a, b);
  }
};

template <class Team, class T, class Partial, class Finish>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_parts_kernel(const T* x, RowParts parts, Partial* partials, Finish finish) {
  using Reduce = typename Team::template Reduce<Partial>;
  __shared__ typename Reduce::TempStorage storage[Team::kPerBlock];
  const int64_t index = team_index<Team>();
  if (index >= parts.count()) return;  // All lanes of the team.
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

template <class Partial, class Finish>
__global__ void __launch_bounds__(kBlockThreads)
    merge_parts_kernel(const Partial* partials, int64_t rows, int64_t per_row, Finish finish) {
  using Reduce = BlockTeam::Reduce<Partial>;
  __shared__ typename Reduce::TempStorage storage;
  const int64_t row = team_index<BlockTeam>();
  if (row >= rows) return;  // The whole block.
  Partial own;
  for (int64_t i = threadIdx.x; i < per_row; i += kBlockThreads) own = merge(own, partials[row * per_row + i]);
  const Partial total = Reduce(storage).Reduce(own, Merge());  // Valid in thread 0.
  if (threadIdx.x == 0) finish(row, total);
}

// How many Partials launch_reduce_rows needs memory for.
inline int64_t partials_for_rows(int64_t rows, int64_t row_size) {
  const RowParts parts = share_rows_for_reduction(rows, row_size);
  return parts.per_row == 1 ? 0 : parts.count();
}

// finish(row, all of the row's elements) on the device, for each row of at least one T. `partials` has room for
// partials_for_rows(x.rows, x.row_size).
template <class T, class Partial, class Finish>
void launch_reduce_rows(const FloatRows& x, Partial* partials, const Finish& finish, cudaStream_t stream,
                        const char* name) {
  constexpr int64_t kMostOfWarp = 1024;
  if (x.rows == 0) return;
  const auto* const values = static_cast<const T*>(x.x);
  const RowParts parts = share_rows_for_reduction(x.rows, x.row_size);
  if (x.row_size <= kMostOfWarp) {
    reduce_parts_kernel<WarpTeam>
        <<<grid_for<WarpTeam>(parts.count()), kBlockThreads, 0, stream>>>(values, parts, partials, finish);
  } else {
    reduce_parts_kernel<BlockTeam>
        <<<grid_for<BlockTeam>(parts.count()), kBlockThreads, 0, stream>>>(values, parts, partials, finish);
  }
  check_launch(name);
  if (parts.per_row > 1) {
    merge_parts_kernel<<<grid_for<BlockTeam>(x.rows), kBlockThreads, 0, stream>>>(partials, x.rows, parts.per_row,
                                                                                  finish);
    check_launch(name);
  }
}

}  // namespace narrowcast::cuda

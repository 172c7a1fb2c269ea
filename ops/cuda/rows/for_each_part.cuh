// Runs an elementwise operation on rows: one team of threads per part of a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/rows/row_parts.h"
#include "ops/cuda/rows/teams.cuh"

namespace narrowcast::cuda {

template <class Team, class Operation>
__global__ void __launch_bounds__(kBlockThreads) for_each_part_kernel(RowParts parts, Operation operation) {
  const int64_t index = team_index<Team>();
  if (index < parts.count()) operation(parts.at(index), Team::lane());
}

// Calls operation(RowPart, Lane) on the device for every part of `rows` rows of `row_size` elements each, by every lane
// of the part's team. Operation::kPart elements are what suits a block.
template <class Operation>
void launch_for_each_part(const Operation& operation, int64_t rows, int64_t row_size, cudaStream_t stream,
                          const char* name) {
  if (rows == 0 || row_size == 0) return;
  const RowParts parts = share_rows(rows, row_size, Operation::kPart);
  if (row_size <= Operation::kPart / 4) {
    for_each_part_kernel<WarpTeam><<<grid_for<WarpTeam>(parts.count()), kBlockThreads, 0, stream>>>(parts, operation);
  } else {
    for_each_part_kernel<BlockTeam><<<grid_for<BlockTeam>(parts.count()), kBlockThreads, 0, stream>>>(parts, operation);
  }
  check_launch(name);
}

}  // namespace narrowcast::cuda

// Runs the threads of a kernel on the CPU, one after the other: the same source that nvcc compiles, with LibTorch's
// 16-bit types instead of CUDA's.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/launch/rows.h"

namespace narrowcast::cuda::test {

// Threads of a team: a warp and a block.
inline constexpr int kTeams[] = {32, 256};

// Runs an elementwise operation on `rows` rows of `row_size` elements, in parts of at most `most`.
template <class Operation>
void run_for_each_part(const Operation& operation, int64_t rows, int64_t row_size, int64_t most, int team) {
  const RowParts parts = share_rows(rows, row_size, most);
  for (int64_t index = 0; index < parts.count(); ++index) {
    for (int rank = team - 1; rank >= 0; --rank) operation(parts.at(index), Lane{rank, team});
  }
}

// Calls finish(row, reduction of its elements) for each row.
template <class Partial, class T, class Finish>
void run_reduce_rows(const T* x, const RowParts& parts, int team, const Finish& finish) {
  std::vector<Partial> of_rows(static_cast<size_t>(parts.rows));
  for (int64_t index = 0; index < parts.count(); ++index) {
    const RowPart part = parts.at(index);
    Partial& of_row = of_rows[static_cast<size_t>(part.row)];
    for (int rank = 0; rank < team; ++rank) {
      of_row = merge(reduce_share<Partial>(x + part.first, part.size, {rank, team}), of_row);
    }
  }
  for (int64_t row = 0; row < parts.rows; ++row) finish(row, of_rows[static_cast<size_t>(row)]);
}

}  // namespace narrowcast::cuda::test

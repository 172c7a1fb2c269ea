// How rows are shared out for a reduction, and one thread's part in it.
//
// Partial is what some elements give: default-constructed for none, add(float) takes
// one, merge(a, b) joins two, in any order with the same result.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/rows/lane.h"
#include "ops/cuda/rows/row_parts.h"
#include "ops/cuda/rows/visit_part.h"

namespace narrowcast::cuda {

// Parts that keep a block busy for long enough, but for the longest rows at most 4096 each.
inline RowParts share_rows_for_reduction(int64_t rows, int64_t row_size) {
  constexpr int64_t kPart = 8192;
  constexpr int64_t kMostParts = 4096;
  const int64_t least = (row_size / kMostParts + 16) / 16 * 16;
  return share_rows(rows, row_size, least < kPart ? kPart : least);
}

// What this lane finds in its share of x[0..n).
template <class Partial, class T>
NARROWCAST_HOST_DEVICE Partial reduce_share(const T* x, int n, Lane lane) {
  Partial own;
  visit_part<4>(x, n, lane, [&own](int, T value) { own.add(static_cast<float>(value)); });
  return own;
}

}  // namespace narrowcast::cuda

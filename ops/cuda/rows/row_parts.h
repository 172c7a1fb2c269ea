// How the elements of equal rows, one after the other in memory, are shared out:
// in parts of one row each, about equally long.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::cuda {

// Some elements of one row: first <= i < first + size, counted from the first element of the first row.
struct RowPart {
  int64_t row;
  int64_t first;
  int size;
};

struct RowParts {
  int64_t rows;       // >= 0
  int64_t row_size;   // elements, >= 0
  int64_t per_row;    // parts of each row, >= 1
  int64_t part_size;  // elements of each part but the row's last, which may have fewer; below 2^31

  NARROWCAST_HOST_DEVICE int64_t count() const { return rows * per_row; }

  // Part 0 <= index < count(), row by row.
  NARROWCAST_HOST_DEVICE RowPart at(int64_t index) const {
    const int64_t row = index / per_row;
    const int64_t begin = (index - row * per_row) * part_size;
    const int64_t left = row_size - begin;
    return {row, row * row_size + begin, static_cast<int>(left < part_size ? left : part_size)};
  }
};

// Parts of at most `most` elements (a multiple of 16, below 2^31), as few as can be. All but the last of a row are
// multiples of 16 elements, so that they begin as the row does with respect to 16 bytes.
inline RowParts share_rows(int64_t rows, int64_t row_size, int64_t most) {
  const int64_t per_row = row_size <= most ? 1 : (row_size + most - 1) / most;
  const int64_t equal = (row_size + per_row - 1) / per_row;
  return {rows, row_size, per_row, (equal + 15) / 16 * 16};
}

}  // namespace narrowcast::cuda

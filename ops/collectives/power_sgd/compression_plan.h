// Selects the gradients of a bucket that PowerSGD sends as the product of two narrow matrices, and places the factors
// and the rest in the arrays that are sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/array/element_range.h"

namespace narrowcast::collectives {

// How matrices are selected.
struct CompressionOptions {
  int64_t rank = 1;     // >= 1: columns of P and Q; fewer if the matrix has fewer rows or columns
  double min_rate = 2;  // > 0: a matrix is sent whole unless it shrinks by more than this
  bool batch = false;   // equal shapes share a batched product
};

// A gradient in a bucket.
struct ShapedRange {
  ElementRange range;
  std::vector<int64_t> sizes;  // its product is range.numel; empty for a scalar
};

// Matrices of one shape, M [k, n, m]; each is row-major and begins at one of `begins`. The ranks exchange P [k, n, r]
// and Q [k, m, r].
struct MatrixBatch {
  int64_t rows = 0;                  // n
  int64_t columns = 0;               // m
  int64_t rank = 0;                  // r <= n, m
  std::vector<int64_t> begins = {};  // in the array, k of them
  std::vector<size_t> members = {};  // their places among the ranges
  int64_t p_begin = 0;               // of the batch in all P
  int64_t q_begin = 0;               // of the batch in all Q

  int64_t count() const { return static_cast<int64_t>(begins.size()); }
  int64_t numel() const { return rows * columns; }
  // The batch's part of all P, [k, n, r], and of all Q, [k, m, r]: views.
  at::Tensor p_of(const at::Tensor& all) const {
    return all.narrow(0, p_begin, count() * rows * rank).view({count(), rows, rank});
  }
  at::Tensor q_of(const at::Tensor& all) const {
    return all.narrow(0, q_begin, count() * columns * rank).view({count(), columns, rank});
  }
  // [k, n, m]: a view of the array if k is 1, else a copy.
  at::Tensor matrices(const at::Tensor& array) const;
  // Writes [k, n, m] into the array; does nothing if it is the view that `matrices` returned.
  void put_back(const at::Tensor& matrices, const at::Tensor& array) const {
    for (int64_t i = 0; count() > 1 && i < count(); ++i) matrix_of(array, i).copy_(matrices[i]);
  }
  // [n, m]: a view of matrix number i of the array.
  at::Tensor matrix_of(const at::Tensor& array, int64_t i) const {
    return array.narrow(0, begins.at(i), numel()).view({rows, columns});
  }
};

// How an array is sent. Random numbers are drawn in the order of batches, and of matrices in them.
struct CompressionPlan {
  int64_t numel = 0;        // of the bucket
  int64_t array_numel = 0;  // of the array of matrices; larger than `numel` if the bucket is padded to a square
  std::vector<MatrixBatch> batches = {};
  std::vector<ElementRange> plain = {};  // ranges that are sent uncompressed, in order; adjacent ones are joined
  int64_t p_numel = 0;
  int64_t q_numel = 0;
  int64_t plain_numel = 0;

  int64_t matrices() const;
  bool is_padded() const { return array_numel != numel; }

  // Copies the uncompressed elements to or from `together`, [plain_numel], where they are contiguous.
  void gather_plain(const at::Tensor& array, const at::Tensor& together) const;
  void scatter_plain(const at::Tensor& together, const at::Tensor& array) const;
};

}  // namespace narrowcast::collectives

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {  // Used by our other libraries as well.

// A gradient of sizes (n, ...) is a matrix n x m. It is compressed with r = min(n, m, rank) if
//   (n + m) r min_rate < n m.
// Scalars, empty gradients, and elements outside all ranges are not compressed. Batches are in the order of their
// first member.
CompressionPlan plan_by_layer(int64_t numel, const std::vector<ShapedRange>& ranges, const CompressionOptions& options);

// Treats the whole bucket as one square matrix, padded with zeros to ceil(sqrt(numel)) rows. Uses r = min(rows, rank).
CompressionPlan plan_of_square(int64_t numel, int64_t rank);

}  // namespace collectives
}  // namespace narrowcast

#include "ops/collectives/power_sgd/stream_low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <utility>

namespace narrowcast::collectives {
namespace {

// Number of passes of Gram-Schmidt over a column. If a column lies in the span of those before it, the first pass
// leaves rounding error. The second pass removes the part of that error in the span. If this was nearly all of it, the
// column has no other direction.
constexpr int kPasses = 3;

// The norm of each column: [k, 1, 1] of [k, n, 1].
at::Tensor norm_of(const at::Tensor& column) {
  return at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
}

// The projection of each column on orthonormal columns [k, n, i].
at::Tensor part_within(const at::Tensor& columns, const at::Tensor& column) {
  return at::bmm(columns, at::bmm(columns.transpose(1, 2), column));
}

// Subtracts, in several passes, the column's projection on the orthonormal columns before it. Returns the column's norm
// afterwards, as norm_of, but 0 where the last pass removed most of it.
at::Tensor make_orthogonal(const at::Tensor& before, const at::Tensor& column) {
  at::Tensor norm;
  at::Tensor last_norm;
  for (int pass = 0; pass < kPasses; ++pass) {
    column.sub_(part_within(before, column));
    if (pass + 2 >= kPasses) last_norm = std::exchange(norm, norm_of(column));
  }
  return norm.masked_fill(norm <= kKeepsOfNorm * last_norm, 0);
}

// Subtracts the projection on column i once, from all columns after it, as PyTorch's hook does.
void subtract_from_rest(const at::Tensor& columns, int64_t i) {
  const int64_t count = columns.size(2) - i - 1;
  if (count > 0) {
    const at::Tensor column = columns.narrow(2, i, 1);
    const at::Tensor rest = columns.narrow(2, i + 1, count);
    rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
  }
}

void orthogonalize_columns(const at::Tensor& columns, double epsilon, LowRankBits bits, const at::Tensor& spare) {
  for (int64_t i = 0; i < columns.size(2); ++i) {
    const at::Tensor column = columns.narrow(2, i, 1);
    const at::Tensor before = columns.narrow(2, 0, i);
    const bool is_orthogonal = i == 0 || bits == LowRankBits::kOfPyTorch;
    at::Tensor norm = is_orthogonal ? norm_of(column) : make_orthogonal(before, column);
    if (spare.defined()) {
      at::Tensor other = spare.narrow(2, i, 1).to(columns.scalar_type());
      if (i > 0) {
        other = other - part_within(before, other);
      }
      const at::Tensor is_zero = norm == 0;
      column.copy_(at::where(is_zero, other, column));
      norm = at::where(is_zero, norm_of(other), norm);
    }
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    column.masked_fill_(norm == 0, 0);
    if (bits == LowRankBits::kOfPyTorch) {
      subtract_from_rest(columns, i);
    }
  }
}

}  // namespace

void orthogonalize_on_stream(const at::Tensor& matrices, double epsilon, LowRankBits bits, const at::Tensor& spare) {
  if (bits == LowRankBits::kOfPyTorch && matrices.size(2) < kQrRank) {
    orthogonalize_columns(matrices, epsilon, LowRankBits::kOfPyTorch, spare);
    return;
  }
  const at::Tensor columns = matrices.to(at::kDouble);
  orthogonalize_columns(columns, epsilon, LowRankBits::kOfAnyMachine, spare);
  matrices.copy_(columns);
}

at::Tensor on_device(const at::Tensor& numbers, at::Device device) {
  if (numbers.device() == device) {
    return numbers;
  }
  return numbers.pin_memory().to(device, numbers.scalar_type(), /*non_blocking=*/true);
}

}  // namespace narrowcast::collectives

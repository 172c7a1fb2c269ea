#include "ops/cpu/optimizer/gradient_norm.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "ops/cpu/optimizer/pieces.h"
#include "ops/cpu/weight_only_int8/quantize_kernels.h"

namespace narrowcast::cpu {
namespace {

bool has_unit(float greatest) { return greatest > 0 && std::isfinite(greatest); }

SquareSum sum_of(SquareSum a, const SquareSum& b) {
  a.add(b);
  return a;
}

}  // namespace

float greatest_magnitude(const std::vector<GradientPiece>& pieces) {
  const auto join_part = [&](int64_t begin, int64_t end, float greatest) {
    visit_pieces(pieces, begin, end, [&](const GradientPiece& piece, int64_t first, int64_t n) {
      greatest = larger_magnitude(greatest, find_largest_magnitude(piece.x + first, n));
    });
    return greatest;
  };
  return at::parallel_reduce(0, size_of_all(pieces), kPiecesGrain, 0.0F, join_part, larger_magnitude);
}

SquareSum sum_of_squares(const std::vector<GradientPiece>& pieces, float greatest) {
  if (!has_unit(greatest)) return {};
  const double unit = square_unit(greatest);
  const auto add_part = [&](int64_t begin, int64_t end, SquareSum sum) {
    visit_pieces(pieces, begin, end, [&](const GradientPiece& piece, int64_t first, int64_t n) {
      sum.add(sum_squares(piece.x + first, n, unit));
    });
    return sum;
  };
  return at::parallel_reduce(0, size_of_all(pieces), kPiecesGrain, SquareSum(), add_part, sum_of);
}

double norm_of_sum(const SquareSum& sum, float greatest) {
  if (!has_unit(greatest)) return static_cast<double>(greatest);
  const double units = static_cast<double>(sum.high) * 0x1p64 + static_cast<double>(sum.low);
  return std::sqrt(units * square_unit(greatest));
}

}  // namespace narrowcast::cpu

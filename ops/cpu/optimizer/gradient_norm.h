// The 2-norm of gradients of float32 on the CPU, on all threads of LibTorch. Its bits depend neither on the number of
// threads nor on how the gradients are divided into pieces and ranks.
//
// Ranks that have a part of the gradients each compute the norm of all of them in three steps: the greatest magnitude
// of all ranks (larger_magnitude), the sum of all ranks' sums of squares (SquareSum::add), and norm_of_sum.
//
// Error: a square is rounded by at most half a unit, 2^-51 of the greatest square. The sum S of n squares therefore has
// an error of at most n * 2^-51 * S, and the norm of n * 2^-52 + 2^-52 of itself, with the rounding of the root.
// Squares of magnitudes above 1/4 of the greatest are exact, so that usual errors are far smaller.
#pragma once

#include <cstdint>
#include <vector>

#include <narrowcast/export.h>
#include "ops/cpu/optimizer/square_kernels.h"

namespace narrowcast {
namespace NARROWCAST_EXPORT cpu {  // Used by libnarrowcast_ddp as well.

// The gradient of a parameter, or some consecutive elements of one.
struct GradientPiece {
  const float* x;
  int64_t n;
  int64_t size() const { return n; }
};

// The larger of two magnitudes; NaN if one of them is NaN.
inline float larger_magnitude(float a, float b) { return b > a || b != b ? b : a; }

// The greatest magnitude of all elements: NaN if one is NaN, otherwise Inf if one is infinite; 0 without elements.
float greatest_magnitude(const std::vector<GradientPiece>& pieces);

// The sum of all squares in units of square_unit(greatest). `greatest` is the greatest magnitude of all ranks'
// gradients. If it is 0 or not finite, the sum is 0.
SquareSum sum_of_squares(const std::vector<GradientPiece>& pieces, float greatest);

// The root of a sum; `greatest` itself if that is 0 or not finite.
double norm_of_sum(const SquareSum& sum, float greatest);

}  // namespace cpu
}  // namespace narrowcast

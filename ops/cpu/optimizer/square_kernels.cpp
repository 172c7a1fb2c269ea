#include "ops/cpu/optimizer/square_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/optimizer/square_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of 2^52 * unit + x * x. The sum lies in the interval whose doubles are the multiples of the unit, so the
// addition rounds the square, and its bits exceed the bits of 2^52 * unit by the number of units. In float64 the
// square of a float32 is exact.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> square_bits(D d, const float* x, hn::Vec<D> rounder) {
  const auto value = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
  return hn::BitCast(hn::RebindToUnsigned<D>(), hn::Add(hn::Mul(value, value), rounder));
}

// A lane's sum of so many squares is less than 2^63 units.
constexpr int64_t kMostSquaresInLane = int64_t{1} << 11;

// Adds n squares, at most kMostSquaresInLane for each lane; n is a multiple of the lanes.
template <class D>
HWY_INLINE void add_squares(D d, const float* x, int64_t n, double rounder, SquareSum& sum) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto added = hn::Set(d, rounder);
  auto bits0 = hn::Zero(d_bits);  // Two chains of sums hide their latency. They may wrap.
  auto bits1 = bits0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    bits0 = hn::Add(bits0, square_bits(d, x + i, added));
    bits1 = hn::Add(bits1, square_bits(d, x + i + lanes, added));
  }
  for (; i < n; i += lanes) bits0 = hn::Add(bits0, square_bits(d, x + i, added));
  HWY_ALIGN uint64_t of_lanes[hn::MaxLanes(d_bits)];
  hn::Store(hn::Add(bits0, bits1), d_bits, of_lanes);
  const uint64_t of_rounders = static_cast<uint64_t>(n / lanes) * std::bit_cast<uint64_t>(rounder);
  for (int64_t lane = 0; lane < lanes; ++lane) sum.add(of_lanes[lane] - of_rounders);
}

void sum_squares_of(const float* x, int64_t n, double rounder, SquareSum* sum) {
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in_vectors = n - n % lanes;
  for (int64_t i = 0; i < in_vectors; i += kMostSquaresInLane * lanes) {
    add_squares(d, x + i, std::min(in_vectors - i, kMostSquaresInLane * lanes), rounder, *sum);
  }
  add_squares(d_one, x + in_vectors, n - in_vectors, rounder, *sum);
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(sum_squares_of);

}  // namespace

double square_unit(float greatest) { return std::ldexp(1.0, 2 * std::ilogb(greatest) - 50); }

SquareSum sum_squares(const float* x, int64_t n, double unit) {
  SquareSum sum;
  HWY_DYNAMIC_DISPATCH(sum_squares_of)(x, n, 0x1p52 * unit, &sum);
  return sum;
}

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

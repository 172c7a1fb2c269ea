// Vectors of elements to quotients and of codes to elements, as
// ops/codec/affine_uint8.h has them, for the instruction set being compiled.
// Included by affine_uint8_kernels.cpp, which includes Highway.
#if defined(NARROWCAST_OPS_CPU_AFFINE_UINT8_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_AFFINE_UINT8_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_AFFINE_UINT8_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_AFFINE_UINT8_LANES_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <hwy/highway.h>

#include <cstdint>

#include "ops/cpu/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// Quotients beyond this give code 0 or 255 whatever the zero point, and every T holds it exactly.
inline constexpr int kFarQuotient = 300;

// Quotients no farther out than that; NaN becomes the least.
template <class D>
HWY_INLINE hn::Vec<D> within_reach(D d, hn::Vec<D> quotient) {
  const auto lowest = hn::Set(d, -kFarQuotient);
  const auto not_low = hn::IfThenElse(hn::Ge(quotient, lowest), quotient, lowest);
  return hn::Min(not_low, hn::Set(d, kFarQuotient));
}

// The quotients of one vector of x, rounded to x's type and within reach.
template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const float* x, float scale) {
  return within_reach(d, hn::Div(hn::LoadU(d, x), hn::Set(d, scale)));
}

// In double until they are whole numbers; float32 holds those exactly.
template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const double* x, float scale) {
  const hn::Rebind<double, D> d_wide;
  const auto rounder = hn::Set(d_wide, 0x1.8p52);
  const auto quotient = within_reach(d_wide, hn::Div(hn::LoadU(d_wide, x), hn::Set(d_wide, double{scale})));
  return hn::DemoteTo(d, hn::Sub(hn::Add(quotient, rounder), rounder));
}

// For the 16-bit types. Float16 keeps fewer bits of a subnormal quotient than
// this, but all of those round to code 0 plus zero point either way.
template <int kDroppedBits, class D, class T>
HWY_INLINE hn::Vec<D> divide_narrow(D d, const T* x, float scale) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto quotient = within_reach(d, hn::Div(load_floats(d, x), hn::Set(d, scale)));
  return hn::BitCast(d, drop_bits<kDroppedBits>(d_bits, hn::BitCast(d_bits, quotient)));
}

template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const c10::BFloat16* x, float scale) {
  return divide_narrow<16>(d, x, scale);
}

template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const c10::Half* x, float scale) {
  return divide_narrow<13>(d, x, scale);
}

// codec::dequantize on one vector.
template <class D>
HWY_INLINE hn::Vec<D> dequantize_lanes(D d, const uint8_t* codes, hn::Vec<D> scale, hn::Vec<D> zero_point) {
  const auto code = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
  return hn::Mul(scale, hn::Sub(hn::ConvertTo(d, code), zero_point));
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_AFFINE_UINT8_LANES_INL_H_

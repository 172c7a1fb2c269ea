// Vectors of float32 lanes, loaded from and stored to arrays of the project's four element types, for the instruction
// set that is being compiled. Included once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_FLOAT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_FLOAT_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_FLOAT_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_FLOAT_LANES_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Float32 lanes for elements of T: a full vector, or half of one for double, so that the doubles fill a vector.
template <class T>
using FloatLanes =
    std::conditional_t<std::is_same_v<T, double>, hn::Rebind<float, hn::ScalableTag<double>>, hn::ScalableTag<float>>;

// If the processor has no conversion from half (below AVX2), Highway's own one handles neither Inf nor NaN; ours does.
inline constexpr bool kHasHalfConversion = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* x) {
  return hn::LoadU(d, x);
}

// Rounds half to even, like static_cast<float>(double). Without vectors, Highway's own conversion would give finite
// numbers on overflow.
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const double* x) {
  if constexpr (HWY_TARGET == HWY_SCALAR) {
    return hn::Set(d, static_cast<float>(*x));
  } else {
    return hn::DemoteTo(d, hn::LoadU(hn::Rebind<double, D>(), x));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const c10::BFloat16* x) {
  const auto bits = hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
}

// The 15 bits below the sign, moved to their position in float32, are the value times 2^-112, subnormals included; Inf
// and NaN give 2^16 or more.
template <class D>
HWY_INLINE hn::Vec<D> half_bits_to_floats(D d, hn::Vec<hn::Rebind<uint16_t, D>> half_bits) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto bits = hn::PromoteTo(d_bits, half_bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d_bits, 0x8000U)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d_bits, 0x7FFFU)));
  const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112F));
  const auto not_finite = hn::Or(magnitude, hn::Set(d_bits, 0x7F800000U));
  const auto is_finite = hn::Lt(value, hn::Set(d, 0x1p16F));
  return hn::BitCast(d,
                     hn::Or(sign, hn::BitCast(d_bits, hn::IfThenElse(is_finite, value, hn::BitCast(d, not_finite)))));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const c10::Half* x) {
  if constexpr (kHasHalfConversion) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(x)));
  } else {
    return half_bits_to_floats(d, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(x)));
  }
}

// Rounds float32 bits half to even; the lowest kDroppedBits bits become 0. Overflow gives Inf; a NaN may become
// anything.
template <int kDroppedBits, class D>
HWY_INLINE hn::Vec<D> drop_bits(D d_bits, hn::Vec<D> bits) {
  const auto odd = hn::And(hn::ShiftRight<kDroppedBits>(bits), hn::Set(d_bits, 1U));
  const auto below_half = hn::Set(d_bits, (1U << (kDroppedBits - 1)) - 1);
  const auto kept = hn::Set(d_bits, ~((1U << kDroppedBits) - 1));
  return hn::And(hn::Add(bits, hn::Add(below_half, odd)), kept);
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, float* out) {
  hn::StoreU(value, d, out);
}

template <class D>
HWY_INLINE void store_floats(D, hn::Vec<D> value, double* out) {
  const hn::Rebind<double, D> d_wide;
  hn::StoreU(hn::PromoteTo(d_wide, value), d_wide, out);
}

template <class D>
HWY_INLINE void store_low_halves(D, hn::Vec<hn::RebindToUnsigned<D>> bits, uint16_t* out) {
  const hn::Rebind<uint16_t, D> d_out;
  hn::StoreU(hn::DemoteTo(d_out, hn::BitCast(hn::RebindToSigned<D>(), bits)), d_out, out);
}

// Like c10::BFloat16(float): round half to even, every NaN is 0x7FC0.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, c10::BFloat16* out) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto rounded = drop_bits<16>(d_bits, hn::BitCast(d_bits, value));
  const auto number = hn::RebindMask(d_bits, hn::Eq(value, value));
  const auto bits = hn::IfThenElse(number, hn::ShiftRight<16>(rounded), hn::Set(d_bits, 0x7FC0U));
  store_low_halves(d, bits, reinterpret_cast<uint16_t*>(out));
}

// Converts float32 numbers to the bits of binary16, rounded half to even; a NaN may become anything. The magnitude is
// rounded by adding a power of two that is 2^13 units of the result's last place, at least those of the subnormals. The
// low bits of the sum are the mantissa, and overflow has become Inf.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> half_bits_of_numbers(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto doubled = hn::Add(hn::BitCast(d_bits, value), hn::BitCast(d_bits, value));
  const auto exponent = hn::Max(hn::And(doubled, hn::Set(d_bits, 0xFF000000U)), hn::Set(d_bits, 0x71000000U));
  const auto rounder = hn::BitCast(d, hn::Add(hn::ShiftRight<1>(exponent), hn::Set(d_bits, 0x07800000U)));
  const auto saturated = hn::Mul(hn::Mul(hn::Abs(value), hn::Set(d, 0x1p112F)), hn::Set(d, 0x1p-110F));
  const auto sum = hn::BitCast(d_bits, hn::Add(rounder, saturated));
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(d_bits, value)), hn::Set(d_bits, 0x8000U));
  const auto magnitude =
      hn::Add(hn::And(hn::ShiftRight<13>(sum), hn::Set(d_bits, 0x7C00U)), hn::And(sum, hn::Set(d_bits, 0x0FFFU)));
  return hn::Or(sign, magnitude);
}

// Like c10::Half(float): round half to even, every NaN is 0x7E00 with its sign.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, c10::Half* out) {
  const hn::RebindToUnsigned<D> d_bits;
  const auto number = hn::Eq(value, value);
  const auto sign = hn::And(hn::BitCast(d_bits, value), hn::Set(d_bits, 0x80000000U));
  if constexpr (kHasHalfConversion) {
    const auto nan = hn::BitCast(d, hn::Or(sign, hn::Set(d_bits, 0x7FC00000U)));
    const hn::Rebind<hwy::float16_t, D> d_out;
    hn::StoreU(hn::DemoteTo(d_out, hn::IfThenElse(number, value, nan)), d_out, reinterpret_cast<hwy::float16_t*>(out));
  } else {
    const auto nan = hn::Or(hn::ShiftRight<16>(sign), hn::Set(d_bits, 0x7E00U));
    const auto bits = hn::IfThenElse(hn::RebindMask(d_bits, number), half_bits_of_numbers(d, value), nan);
    store_low_halves(d, bits, reinterpret_cast<uint16_t*>(out));
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_FLOAT_LANES_INL_H_

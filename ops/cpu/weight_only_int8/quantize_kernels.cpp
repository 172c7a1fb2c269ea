#include "ops/cpu/weight_only_int8/quantize_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_only_int8/quantize_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ops/cpu/lanes/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// Floats without their signs have the order of integers, with Inf and then NaN above all others. So one integer maximum
// finds the largest magnitude and any NaN.
template <class T>
float find_largest_magnitude(const T* x, int64_t n) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const hn::ScalableTag<Bits> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto magnitude = hn::Set(d, kMagnitude);
  const auto* bits = reinterpret_cast<const Bits*>(x);
  auto largest0 = hn::Zero(d);
  auto largest1 = largest0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    largest0 = hn::Max(largest0, hn::And(hn::LoadU(d, bits + i), magnitude));
    largest1 = hn::Max(largest1, hn::And(hn::LoadU(d, bits + i + lanes), magnitude));
  }
  Bits largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest0, largest1)));
  for (; i < n; ++i) {
    Bits value;
    std::memcpy(&value, x + i, sizeof(value));
    largest = std::max(largest, static_cast<Bits>(value & kMagnitude));
  }
  T value;
  std::memcpy(&value, &largest, sizeof(value));
  return static_cast<float>(value);
}

// Rounds a float32 quotient to T. Float16 keeps fewer bits of a subnormal quotient than this, but such quotients round
// to code 0 in either case.
template <class T, class D>
HWY_INLINE hn::Vec<D> round_quotient(D d, hn::Vec<D> quotient) {
  const hn::RebindToUnsigned<D> d_bits;
  if constexpr (std::is_same_v<T, float>) {
    return quotient;
  } else {
    constexpr int kDropped = std::is_same_v<T, c10::BFloat16> ? 16 : 13;
    return hn::BitCast(d, drop_bits<kDropped>(d_bits, hn::BitCast(d_bits, quotient)));
  }
}

// Quotients are clamped before they are rounded, which is safe because every T represents the bounds exactly. Adding
// 1.5 * 2^23 then rounds them half to even and leaves them in the low bits.
template <class T, class Code>
void quantize_symmetric(const T* x, int64_t n, T scale, CodeRange range, Code* codes) {
  const FloatLanes<T> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const hn::Rebind<Code, decltype(d)> d_codes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto divisor = hn::Set(d, static_cast<float>(scale));
  const auto min = hn::Set(d, static_cast<float>(range.min));
  const auto max = hn::Set(d, static_cast<float>(range.max));
  const auto rounder = hn::Set(d, 0x1.8p23F);
  // NaN occurs only with a scale that is not finite, and the vectors do not handle it.
  const int64_t in_vectors = std::isfinite(static_cast<float>(scale)) ? n / lanes * lanes : 0;
  for (int64_t i = 0; i < in_vectors; i += lanes) {
    const auto clamped = hn::Min(hn::Max(hn::Div(load_floats(d, x + i), divisor), min), max);
    const auto rounded = hn::Add(round_quotient<T>(d, clamped), rounder);
    const auto code = hn::Sub(hn::BitCast(d_int, rounded), hn::BitCast(d_int, rounder));
    hn::StoreU(hn::DemoteTo(d_codes, code), d_codes, codes + i);
  }
  for (int64_t i = in_vectors; i < n; ++i) {
    codes[i] = static_cast<Code>(codec::symmetric_code(x[i], scale, range));
  }
}

const SymmetricKernelTable& symmetric_kernel_table() {
  static constexpr SymmetricKernelTable kTable{
      &find_largest_magnitude<float>,
      &find_largest_magnitude<c10::BFloat16>,
      &find_largest_magnitude<c10::Half>,
      &quantize_symmetric<float, int8_t>,
      &quantize_symmetric<float, uint8_t>,
      &quantize_symmetric<float, int16_t>,
      &quantize_symmetric<c10::BFloat16, int8_t>,
      &quantize_symmetric<c10::BFloat16, uint8_t>,
      &quantize_symmetric<c10::Half, int8_t>,
      &quantize_symmetric<c10::Half, uint8_t>,
  };
  return kTable;
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(symmetric_kernel_table);

template <class Function>
Function kernel() {
  return std::get<Function>(HWY_DYNAMIC_DISPATCH(symmetric_kernel_table)());
}

}  // namespace

template <class T>
float find_largest_magnitude(const T* x, int64_t n) {
  return kernel<FindLargestMagnitude<T>>()(x, n);
}

template <class T, class Code>
void quantize_symmetric(const T* x, int64_t n, T scale, CodeRange range, Code* codes) {
  kernel<QuantizeSymmetric<T, Code>>()(x, n, scale, range, codes);
}

#define NARROWCAST_INSTANTIATE(T)                                                        \
  template float find_largest_magnitude<T>(const T*, int64_t);                           \
  template void quantize_symmetric<T, int8_t>(const T*, int64_t, T, CodeRange, int8_t*); \
  template void quantize_symmetric<T, uint8_t>(const T*, int64_t, T, CodeRange, uint8_t*);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)
template void quantize_symmetric<float, int16_t>(const float*, int64_t, float, CodeRange, int16_t*);

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

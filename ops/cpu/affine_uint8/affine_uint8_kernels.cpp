#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/affine_uint8/affine_uint8_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "ops/cpu/lanes/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {

// The value of a float type's bits if it is greater than 0 (or NaN), else 0.
template <class T, class Bits>
float positive_or_zero(Bits bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return bits == 0 ? 0 : static_cast<float>(value);
}

// Floats are compared as integers: among values with the sign bit clear, the greatest value has the greatest signed
// bits. Among values with it set, the least value has the greatest unsigned bits. A NaN exceeds all other values of its
// sign. So two integer maxima per vector give both ends of the range and detect NaN, at the elements' own width.
template <class T>
AffineRange find_range(const T* x, int64_t n) {
  using Bits = hwy::MakeUnsigned<std::conditional_t<sizeof(T) == 2, uint16_t, T>>;
  const hn::ScalableTag<Bits> d;
  const hn::RebindToSigned<decltype(d)> d_signed;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* bits = reinterpret_cast<const Bits*>(x);
  auto least0 = hn::Zero(d);
  auto least1 = least0;
  auto greatest0 = hn::Zero(d_signed);
  auto greatest1 = greatest0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto value0 = hn::LoadU(d, bits + i);
    const auto value1 = hn::LoadU(d, bits + i + lanes);
    least0 = hn::Max(least0, value0);
    least1 = hn::Max(least1, value1);
    greatest0 = hn::Max(greatest0, hn::BitCast(d_signed, value0));
    greatest1 = hn::Max(greatest1, hn::BitCast(d_signed, value1));
  }
  const Bits least = hn::GetLane(hn::MaxOfLanes(d, hn::Max(least0, least1)));
  const auto greatest = hn::GetLane(hn::MaxOfLanes(d_signed, hn::Max(greatest0, greatest1)));
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  AffineRange range{positive_or_zero<T>(static_cast<Bits>(least > kSign ? least : 0)), positive_or_zero<T>(greatest)};
  for (; i < n; ++i) {
    const auto value = static_cast<float>(x[i]);
    range = codec::merge(range, {value, value});
  }
  return range;
}

// Quotients beyond it give code 0 or 255 for any zero point; every T represents it exactly.
constexpr int kFarQuotient = 300;

// Clamps quotients to that range; NaN becomes the least value.
template <class D>
HWY_INLINE hn::Vec<D> within_reach(D d, hn::Vec<D> quotient) {
  const auto lowest = hn::Set(d, -kFarQuotient);
  const auto not_low = hn::IfThenElse(hn::Ge(quotient, lowest), quotient, lowest);
  return hn::Min(not_low, hn::Set(d, kFarQuotient));
}

// The quotients of one vector of x, rounded to x's type and clamped.
template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const float* x, float scale) {
  return within_reach(d, hn::Div(hn::LoadU(d, x), hn::Set(d, scale)));
}

// Rounds to whole numbers in double; float32 represents these exactly.
template <class D>
HWY_INLINE hn::Vec<D> divide(D d, const double* x, float scale) {
  const hn::Rebind<double, D> d_wide;
  const auto rounder = hn::Set(d_wide, 0x1.8p52);
  const auto quotient = within_reach(d_wide, hn::Div(hn::LoadU(d_wide, x), hn::Set(d_wide, double{scale})));
  return hn::DemoteTo(d, hn::Sub(hn::Add(quotient, rounder), rounder));
}

// For the 16-bit types. Float16 keeps fewer bits of a subnormal quotient than this, but such quotients round to the
// code of 0 in either case.
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

// codec::quantize on vectors. Adding 1.5 * 2^23 rounds a quotient half to even and leaves it in the low bits. Whole
// numbers are then added without rounding, and the conversion to uint8 clamps.
template <class T>
void quantize(const T* x, int64_t n, AffineQparams qparams, uint8_t* codes) {
  const FloatLanes<T> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const hn::Rebind<uint8_t, decltype(d)> d_codes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto rounder = hn::Set(d, 0x1.8p23F);
  const auto offset = hn::Sub(hn::BitCast(d_int, rounder), hn::Set(d_int, qparams.zero_point));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto rounded = hn::Add(divide(d, x + i, qparams.scale), rounder);
    hn::StoreU(hn::DemoteTo(d_codes, hn::Sub(hn::BitCast(d_int, rounded), offset)), d_codes, codes + i);
  }
  for (; i < n; ++i) {
    codes[i] = codec::quantize(x[i], qparams);
  }
}

template <class T>
AffineQparams choose_qparams_and_quantize(const T* x, int64_t n, uint8_t* codes) {
  const AffineQparams qparams = n == 0 ? AffineQparams{} : codec::choose_qparams(find_range(x, n));
  quantize(x, n, qparams, codes);
  return qparams;
}

// codec::dequantize on one vector.
template <class D>
HWY_INLINE hn::Vec<D> dequantize_lanes(D d, const uint8_t* codes, hn::Vec<D> scale, hn::Vec<D> zero_point) {
  const auto code = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
  return hn::Mul(scale, hn::Sub(hn::ConvertTo(d, code), zero_point));
}

void dequantize(const uint8_t* codes, int64_t n, AffineQparams qparams, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto scale = hn::Set(d, qparams.scale);
  const auto zero_point = hn::Set(d, static_cast<float>(qparams.zero_point));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(dequantize_lanes(d, codes + i, scale, zero_point), d, out + i);
  }
  for (; i < n; ++i) {
    out[i] = codec::dequantize(codes[i], qparams);
  }
}

// One element of dequantize_mean, in float32.
inline float dequantized_mean(const uint8_t* const* codes, const AffineQparams* qparams, int64_t ranks, int64_t i) {
  float sum = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    sum += codec::dequantize(codes[r][i], qparams[r]);
  }
  return sum / static_cast<float>(ranks);
}

// Processes four vectors at a time, so that a rank's qparams are loaded once for all four.
template <class T>
void dequantize_mean(const uint8_t* const* codes, const AffineQparams* qparams, int64_t ranks, int64_t n, T* out) {
  const FloatLanes<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto divisor = hn::Set(d, static_cast<float>(ranks));
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    auto sum0 = hn::Zero(d);
    auto sum1 = sum0;
    auto sum2 = sum0;
    auto sum3 = sum0;
    for (int64_t r = 0; r < ranks; ++r) {
      const auto scale = hn::Set(d, qparams[r].scale);
      const auto zero_point = hn::Set(d, static_cast<float>(qparams[r].zero_point));
      const uint8_t* const part = codes[r] + i;
      sum0 = hn::Add(sum0, dequantize_lanes(d, part, scale, zero_point));
      sum1 = hn::Add(sum1, dequantize_lanes(d, part + lanes, scale, zero_point));
      sum2 = hn::Add(sum2, dequantize_lanes(d, part + 2 * lanes, scale, zero_point));
      sum3 = hn::Add(sum3, dequantize_lanes(d, part + 3 * lanes, scale, zero_point));
    }
    store_floats(d, hn::Div(sum0, divisor), out + i);
    store_floats(d, hn::Div(sum1, divisor), out + i + lanes);
    store_floats(d, hn::Div(sum2, divisor), out + i + 2 * lanes);
    store_floats(d, hn::Div(sum3, divisor), out + i + 3 * lanes);
  }
  for (; i < n; ++i) {
    out[i] = static_cast<T>(dequantized_mean(codes, qparams, ranks, i));
  }
}

template <class T>
inline constexpr AffineKernels<T> kKernels{&find_range<T>, &quantize<T>, &choose_qparams_and_quantize<T>,
                                           &dequantize_mean<T>};

const AffineKernelTable& kernel_table() {
  static constexpr AffineKernelTable kTable{kKernels<float>, kKernels<double>, kKernels<c10::BFloat16>,
                                            kKernels<c10::Half>};
  return kTable;
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(dequantize);
HWY_EXPORT(kernel_table);

template <class T>
const AffineKernels<T>& kernels() {
  return std::get<AffineKernels<T>>(HWY_DYNAMIC_DISPATCH(kernel_table)());
}

}  // namespace

template <class T>
AffineRange find_range(const T* x, int64_t n) {
  return kernels<T>().find_range(x, n);
}

template <class T>
AffineQparams choose_qparams(const T* x, int64_t n) {
  return n == 0 ? AffineQparams{} : codec::choose_qparams(find_range(x, n));
}

template <class T>
void quantize(const T* x, int64_t n, AffineQparams qparams, uint8_t* codes) {
  kernels<T>().quantize(x, n, qparams, codes);
}

template <class T>
AffineQparams choose_qparams_and_quantize(const T* x, int64_t n, uint8_t* codes) {
  return kernels<T>().choose_qparams_and_quantize(x, n, codes);
}

void dequantize(const uint8_t* codes, int64_t n, AffineQparams qparams, float* out) {
  HWY_DYNAMIC_DISPATCH(dequantize)(codes, n, qparams, out);
}

template <class T>
void dequantize_mean(const uint8_t* const* codes, const AffineQparams* qparams, int64_t ranks, int64_t n, T* out) {
  kernels<T>().dequantize_mean(codes, qparams, ranks, n, out);
}

#define NARROWCAST_INSTANTIATE(T)                                                     \
  template AffineRange find_range<T>(const T*, int64_t);                              \
  template AffineQparams choose_qparams<T>(const T*, int64_t);                        \
  template void quantize<T>(const T*, int64_t, AffineQparams, uint8_t*);              \
  template AffineQparams choose_qparams_and_quantize<T>(const T*, int64_t, uint8_t*); \
  template void dequantize_mean<T>(const uint8_t* const*, const AffineQparams*, int64_t, int64_t, T*);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

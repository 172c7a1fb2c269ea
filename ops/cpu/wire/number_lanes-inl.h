// The float formats (codec/wire/float_elements.h), many numbers at a time; the
// counterpart of message_lanes-inl.h. Included once per instruction set that has
// vectors, by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_NUMBER_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_NUMBER_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_NUMBER_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_NUMBER_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_message.h"
#include "ops/cpu/float_lanes-inl.h"
#include "ops/cpu/wire/random_words-inl.h"
#include "ops/cpu/wire/wire_table.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The type that float_lanes-inl.h reads and writes an Element as, and stochastic rounding of finite numbers to codes.
template <class Element>
struct NumberLanes;

template <>
struct NumberLanes<codec::wire::Bfloat16> {
  using Number = c10::BFloat16;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>> random, uint16_t* out) {
    const auto bits = hn::BitCast(hn::RebindToUnsigned<D>(), x);
    store_low_halves(d, hn::ShiftRight<16>(hn::Add(bits, hn::ShiftRight<16>(random))), out);
  }
};

template <>
struct NumberLanes<codec::wire::Binary16> {
  using Number = c10::Half;
  using Element = codec::wire::Binary16;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>> random, uint16_t* out) {
    const hn::RebindToUnsigned<D> d_bits;
    const auto magnitude = hn::Abs(x);
    const auto least_normal = hn::BitCast(d, hn::Set(d_bits, Element::kNormalBits));
    const auto small = hn::Mul(hn::Min(magnitude, least_normal), hn::Set(d, 0x1p37F));
    const auto subnormal = hn::BitCast(d_bits, hn::ConvertTo(hn::RebindToSigned<D>(), small));
    const auto normal = hn::Sub(hn::BitCast(d_bits, magnitude), hn::Set(d_bits, Element::kRebias));
    const auto is_subnormal = hn::RebindMask(d_bits, hn::Lt(magnitude, least_normal));
    const auto fixed = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto code = hn::ShiftRight<13>(hn::Add(fixed, hn::ShiftRight<19>(random)));
    const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(d_bits, x)), hn::Set(d_bits, 0x8000U));
    store_low_halves(d, hn::Or(sign, hn::Min(code, hn::Set(d_bits, Element::kInf))), out);
  }
};

// Nothing to round.
template <>
struct NumberLanes<codec::wire::Binary32> {
  using Number = float;

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, hn::Vec<hn::RebindToUnsigned<D>>, uint32_t* out) {
    hn::StoreU(x, d, reinterpret_cast<float*>(out));
  }
};

template <class Format>
struct NumberMessageLanes {
  using Element = typename Format::Element;
  using Lanes = NumberLanes<Element>;
  using Code = typename Element::Code;
  using Number = typename Lanes::Number;
  using D = hn::ScalableTag<float>;
  static constexpr int64_t kWhole = hn::MaxLanes(D());

  static void encode(const TileSource& source, int64_t n, const codec::wire::Rounding& rounding, uint8_t* bytes) {
    const float* const x = source.x;
    if (rounding.stochastic) {
      RandomWords<kTile> random;
      return encode_at_random(x, n, random.fill(rounding, n), bytes);
    }
    const D d;
    for (int64_t i = 0; i < n; i += kWhole) {
      const auto value = hn::LoadU(d, x + i);
      const auto canonical = hn::IfThenElse(hn::Eq(value, value), value, hn::BitCast(d, quiet_nan()));
      store_floats(d, canonical, reinterpret_cast<Number*>(bytes + i * Format::kBlockBytes));
    }
  }

  template <class Sink>
  static void decode(const uint8_t* bytes, int64_t n, float* out) {
    const D d;
    for (int64_t i = 0; i < n; i += kWhole) {
      Sink::put(d, load_floats(d, reinterpret_cast<const Number*>(bytes + i * Format::kBlockBytes)), out + i);
    }
  }

 private:
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> quiet_nan() {
    return hn::Set(hn::RebindToUnsigned<D>(), codec::kQuietNanBits);
  }

  // Numbers that are not finite are rare, and are written one by one.
  static HWY_NOINLINE void encode_at_random(const float* x, int64_t n, const uint32_t* random, uint8_t* bytes) {
    const D d;
    const hn::RebindToUnsigned<D> d_bits;
    for (int64_t i = 0; i < n; i += kWhole) {
      const auto value = hn::LoadU(d, x + i);
      auto* const codes = reinterpret_cast<Code*>(bytes + i * Format::kBlockBytes);
      Lanes::store(d, value, hn::LoadU(d_bits, random + i), codes);
      if (!hn::AllTrue(d, hn::Lt(hn::Abs(value), hn::BitCast(d, hn::Set(d_bits, codec::kInfBits))))) {
        encode_not_finite(x + i, bytes + i * Format::kBlockBytes);
      }
    }
  }

  // Overwrites what is there for numbers that are not finite.
  static HWY_NOINLINE void encode_not_finite(const float* x, uint8_t* bytes) {
    for (int64_t i = 0; i < kWhole; ++i) {
      if (codec::magnitude_bits(x[i]) >= codec::kInfBits) {
        codec::wire::encode_number<Format>(x[i], {}, bytes + i * Format::kBlockBytes);
      }
    }
  }
};

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_NUMBER_LANES_INL_H_

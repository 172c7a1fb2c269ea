// Messages of formats without blocks (ops/codec/wire_message.h), many numbers at a time. Included once per instruction
// set that has vectors, by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_NUMBER_MESSAGE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_NUMBER_MESSAGE_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_NUMBER_MESSAGE_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_NUMBER_MESSAGE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_message.h"
#include "ops/cpu/lanes/float_lanes-inl.h"
#include "ops/cpu/wire/element_lanes-inl.h"
#include "ops/cpu/wire/random_words-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Encodes and decodes multiples of kWhole numbers, at most a tile. Decoded vectors are passed to a Sink of
// wire_tiles-inl.h.
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

  // Overwrites the codes of numbers that are not finite.
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

#endif  // NARROWCAST_OPS_CPU_WIRE_NUMBER_MESSAGE_LANES_INL_H_

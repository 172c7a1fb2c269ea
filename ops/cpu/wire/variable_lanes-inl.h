// Blocks of codes of any width (ops/codec/variable_width.h), between float32, the bits of a message, and back. Included
// once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/wire/bit_planes-inl.h"
#include "ops/cpu/wire/element_lanes-inl.h"
#include "ops/cpu/wire/tile_inputs-inl.h"

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::kVariableBlock;

#if HWY_TARGET != HWY_SCALAR

// Vectors of codes on their way to bytes. Two of the widest, or four of others become a vector of bytes.
inline constexpr bool kHasWidest = hn::MaxLanes(hn::ScalableTag<float>()) == 16;
using CodeFloats = hn::CappedTag<float, 16>;
using CodeLanes = hn::RebindToUnsigned<CodeFloats>;
inline constexpr int64_t kCodeLanes = hn::MaxLanes(CodeFloats());
inline constexpr int64_t kCodeVectors = kPlaneLanes / kCodeLanes;
static_assert(kCodeVectors == (kHasWidest ? 2 : 4), "codes must fill a vector of bytes");

// The low bits of what is added to it are a whole number, and the rest these.
inline constexpr float kRounder = 0x1.8p23F;
inline constexpr int32_t kRounderBits = 0x4B400000;

// Codes of kCodeLanes elements, all bits of them. `origin` is kRounderBits less the zero point. Random words are those
// of the block's elements; without, to nearest.
template <class... Random>
HWY_INLINE hn::Vec<CodeLanes> code_lanes(const float* x, float inverse, int32_t origin, Random... random) {
  const CodeFloats d;
  const hn::RebindToSigned<CodeFloats> d_int;
  const auto y = hn::Mul(hn::LoadU(d, x), hn::Set(d, inverse));
  const auto whole = [&](hn::Vec<CodeFloats> number) HWY_ATTR {
    const auto sum = hn::BitCast(d_int, hn::Add(number, hn::Set(d, kRounder)));
    return hn::Sub(sum, hn::Set(d_int, origin));
  };
  if constexpr (sizeof...(Random) == 0) {
    return hn::BitCast(CodeLanes(), whole(y));
  } else {
    const auto below = hn::Floor(y);
    const auto fraction = hn::ConvertTo(d_int, hn::Mul(hn::Sub(y, below), hn::Set(d, 0x1p24F)));
    const auto sum = hn::Add(fraction, hn::BitCast(d_int, hn::ShiftRight<8>(hn::LoadU(CodeLanes(), random...))));
    return hn::BitCast(CodeLanes(), hn::Add(whole(below), hn::ShiftRight<24>(sum)));
  }
}

// Two of the widest vectors as one of int16, by 4 and 4 of either.
template <class D>
HWY_INLINE hn::Vec<hn::Repartition<int16_t, D>> join_words(D, const hn::Vec<D> (&codes)[2]) {
  const hn::RebindToSigned<D> d_int;
  return hn::ReorderDemote2To(hn::Repartition<int16_t, D>(), hn::BitCast(d_int, codes[0]),
                              hn::BitCast(d_int, codes[1]));
}

// What join_words made, as bytes in order, or the rows of a product. No number is beyond a byte.
template <class D>
HWY_INLINE PlaneVector order_bytes(D, hn::Vec<D> numbers) {
  const hn::Rebind<int8_t, D> d_bytes;
  const auto bytes = hn::DemoteTo(d_bytes, numbers);
#if NARROWCAST_HAS_GFNI
  return ordered(hn::BitCast(PlaneBytes(), bytes), kPlaneOrders.rows_of_codes);
#else
  const hn::Repartition<uint32_t, decltype(d_bytes)> d_quads;
  const auto in_order = hn::SetTableIndices(d_quads, kPlaneTables.quads);
  return hn::BitCast(PlaneBytes(), hn::TableLookupLanes(hn::BitCast(d_quads, bytes), in_order));
#endif
}

// The bytes of a vector's codes, shifted left by `shift`: the low ones, and if it is wide those above them.
template <bool kIsWide, class D>
HWY_INLINE void bytes_of(D d, hn::Vec<D> (&codes)[kCodeVectors], int shift, PlaneVector& low, PlaneVector& high) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    const hn::Repartition<int16_t, D> d_wide;
    const auto joined = join_words(d, codes);
    const auto shifted = kIsWide || !BitPlanes::kTakesWidths ? hn::ShiftLeftSame(joined, shift) : joined;
    low = order_bytes(d_wide, kIsWide ? hn::ShiftRight<8>(hn::ShiftLeft<8>(shifted)) : shifted);
    high = kIsWide ? order_bytes(d_wide, hn::ShiftRight<8>(shifted)) : low;
  } else {
    for (auto& code : codes) code = hn::ShiftLeftSame(code, shift);
    low = join_low_bytes(d, codes);
    for (auto& code : codes) code = hn::ShiftRight<8>(code);
    high = kIsWide ? join_low_bytes(d, codes) : low;
  }
}

// Writes the codes of a block, and behind its words anything up to 64 bytes from its first one on.
template <bool kIsWide, class... Random>
HWY_INLINE void encode_codes(const BitPlanes& planes, const float* x, float inverse, uint32_t width, int32_t origin,
                             uint8_t* words, Random... random) {
  constexpr uint32_t kBits = kIsWide ? 2 * kPlanes : kPlanes;
  PlaneVector low[kPlaneVectors];
  PlaneVector high[kPlaneVectors];
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    hn::Vec<CodeLanes> codes[kCodeVectors];
    for (int64_t j = 0; j < kCodeVectors; ++j) {
      const int64_t first = i * kPlaneLanes + j * kCodeLanes;
      codes[j] = code_lanes(x + first, inverse, origin, random + first...);
    }
    bytes_of<kIsWide>(CodeLanes(), codes, static_cast<int>(kBits - width), low[i], high[i]);
  }
  if constexpr (kIsWide) {
    planes.store(high, kPlanes, words);
    planes.store(low, kPlanes, words + kPlanesBytes);
  } else {
    planes.store(low, width, words);
  }
}

// `origin` as code_lanes wants it.
template <class... Random>
HWY_INLINE void encode_block(const BitPlanes& planes, const float* x, float inverse, uint32_t width, int32_t origin,
                             uint8_t* words, Random... random) {
  if (HWY_LIKELY(width <= kPlanes)) {
    encode_codes<false>(planes, x, inverse, width, origin, words, random...);
  } else {
    encode_codes<true>(planes, x, inverse, width, origin, words, random...);
  }
}

// Decodes codes of more than 8 bits from the 64 bytes from a block's first word on.
template <class Sink>
HWY_NOINLINE void decode_wide_words(const BitPlanes& planes, const uint8_t* words, uint32_t width, float step,
                                    float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const int shift = static_cast<int>(2 * kPlanes - width);
  PlaneVector high[kPlaneVectors];
  PlaneVector low[kPlaneVectors];
  planes.load(words, kPlanes, high);
  planes.load(words + kPlanesBytes, kPlanes, low);
  alignas(64) int32_t upper[kVariableBlock];
  for_each_vector(high, [&](int64_t i, auto bytes) { hn::Store(hn::ShiftLeft<kPlanes>(bytes), d_int, upper + i); });
  for_each_vector(low, [&](int64_t i, auto bytes) {
    const auto code = hn::Or(hn::Load(d_int, upper + i), hn::And(bytes, hn::Set(d_int, 0xFF)));
    Sink::put(d, hn::Mul(hn::Set(d, step), hn::ConvertTo(d, hn::ShiftRightSame(code, shift))), out + i);
  });
}

// What decode_words wants of a zero point: it, or the same in each byte.
inline constexpr int32_t kZeroPointUnit = BitPlanes::kTakesWidths ? 0x01010101 : 1;

// Reads the 32 bytes from a block's first word on, or 64 if its codes have more than 8 bits. `zero_points` is the zero
// point times kZeroPointUnit.
template <class Sink>
HWY_INLINE void decode_words(const BitPlanes& planes, const uint8_t* words, uint32_t width, int32_t zero_points,
                             float step, float* out) {
  if (HWY_UNLIKELY(width > kPlanes)) {
    return decode_wide_words<Sink>(planes, words, width, step, out);
  }
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const auto scale = hn::Set(d, step);
  const int shift = static_cast<int>(kPlanes - width);
  PlaneVector block[kPlaneVectors];
  planes.load(words, width, block);
  if constexpr (BitPlanes::kTakesWidths) {  // No difference is beyond a byte, as codes of 8 bits have no zero point.
    const hn::Repartition<int32_t, PlaneBytes> d_pattern;
    for (auto& bytes : block) {
      bytes = hn::Sub(bytes, hn::BitCast(PlaneBytes(), hn::Set(d_pattern, zero_points)));
    }
  }
  for_each_vector(block, [&](int64_t i, auto bytes) {
    const auto codes =
        BitPlanes::kTakesWidths ? bytes : hn::Sub(hn::ShiftRightSame(bytes, shift), hn::Set(d_int, zero_points));
    Sink::put(d, hn::Mul(scale, hn::ConvertTo(d, codes)), out + i);
  });
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_

// Blocks of codes of any width (ops/codec/variable_width.h): conversion between float32 and the bits of a message.
// Included once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/variable/bit_planes-inl.h"
#include "ops/cpu/wire/element_lanes-inl.h"

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::kVariableBlock;

#if HWY_TARGET != HWY_SCALAR

// Vectors of codes before they become bytes. Two vectors of 16 lanes, or four narrower ones, become a vector of bytes.
inline constexpr bool kHasWidest = hn::MaxLanes(hn::ScalableTag<float>()) == 16;
using CodeFloats = hn::CappedTag<float, 16>;
using CodeLanes = hn::RebindToUnsigned<CodeFloats>;
inline constexpr int64_t kCodeLanes = hn::MaxLanes(CodeFloats());
inline constexpr int64_t kCodeVectors = kPlaneLanes / kCodeLanes;
static_assert(kCodeVectors == (kHasWidest ? 2 : 4), "codes must fill a vector of bytes");

// The zero point of codes of this width, in the form in which it is added to a byte for BitPlanes.
constexpr int32_t zero_point_of_planes(int32_t zero_point, uint32_t width) {
  return BitPlanes::kTakesWidths || zero_point == 0 ? zero_point : zero_point << (kPlanes - width);
}

// The codes of kCodeLanes elements, without the zero point, in the low 22 bits. `random` is the random words of the
// block's elements; without them, rounds to nearest.
template <class... Random>
HWY_INLINE hn::Vec<CodeLanes> rounded_lanes(const float* x, float inverse, Random... random) {
  constexpr float kRounder = 0x1.8p23F;  // The low bits of the sum are the whole number.
  const CodeFloats d;
  const hn::RebindToSigned<CodeFloats> d_int;
  const auto y = hn::Mul(hn::LoadU(d, x), hn::Set(d, inverse));
  const auto rounded = [&](hn::Vec<CodeFloats> number)
                           HWY_ATTR { return hn::BitCast(d_int, hn::Add(number, hn::Set(d, kRounder))); };
  if constexpr (sizeof...(Random) == 0) {
    return hn::BitCast(CodeLanes(), rounded(y));
  } else {
    const auto below = hn::Floor(y);
    const auto fraction = hn::ConvertTo(d_int, hn::Mul(hn::Sub(y, below), hn::Set(d, 0x1p24F)));
    const auto sum = hn::Add(fraction, hn::BitCast(d_int, hn::ShiftRight<8>(hn::LoadU(CodeLanes(), random...))));
    return hn::BitCast(CodeLanes(), hn::Add(rounded(below), hn::ShiftRight<24>(sum)));
  }
}

// The low bytes of a vector's codes: as rows of a product if planes are computed by a product, else in order.
#if NARROWCAST_HAS_GFNI
template <class D>
HWY_INLINE PlaneVector low_bytes_of(D /*d*/, const hn::Vec<D> (&codes)[kCodeVectors]) {
  return rows_of_codes(codes[0], codes[1]);
}
#else
template <class D>
HWY_INLINE PlaneVector low_bytes_of(D d, const hn::Vec<D> (&codes)[kCodeVectors]) {
  if constexpr (kHasWidest) {
    const auto halves = hn::BitCast(d, hn::Or(low_bytes<0>(d, codes[0]), low_bytes<1>(d, codes[1])));
    const auto quads = hn::TableLookupLanes(halves, hn::SetTableIndices(d, kPlaneTables.quads));
    return hn::BitCast(PlaneBytes(), hn::LowerHalf(quads));
  } else {
    return join_low_bytes(d, codes);
  }
}
#endif

// The conversion between a block's elements and its codes. Members are references so that broadcasts load them.
struct BlockCodes {
  const float& factor;  // Of the elements if they are encoded, of the codes if they are decoded.
  uint32_t width;
  const uint8_t& zero_point;  // zero_point_of_planes; unused in codes of more than 8 bits.
};

// Writes the codes of a block; bytes after its words may become anything, up to 64 bytes from its first word on.
template <bool kIsWide, class... Random>
HWY_INLINE void encode_codes(const BitPlanes& planes, const float* x, const BlockCodes& block, uint8_t* words,
                             Random... random) {
  constexpr uint32_t kBits = kIsWide ? 2 * kPlanes : kPlanes;
  const CodeLanes d;
  const int shift = static_cast<int>(kBits - block.width);
  PlaneVector low[kPlaneVectors];
  PlaneVector high[kPlaneVectors];
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    hn::Vec<CodeLanes> codes[kCodeVectors];
    for (int64_t j = 0; j < kCodeVectors; ++j) {
      const int64_t first = i * kPlaneLanes + j * kCodeLanes;
      const auto rounded = rounded_lanes(x + first, block.factor, random + first...);
      codes[j] = kIsWide || !BitPlanes::kTakesWidths ? hn::ShiftLeftSame(rounded, shift) : rounded;
    }
    low[i] = low_bytes_of(d, codes);
    if constexpr (kIsWide) {
      for (auto& code : codes) code = hn::ShiftRight<8>(code);
      high[i] = low_bytes_of(d, codes);
    } else {
      low[i] = hn::Add(low[i], hn::Set(PlaneBytes(), block.zero_point));
    }
  }
  if constexpr (kIsWide) {
    planes.store(high, kPlanes, words);
    planes.store(low, kPlanes, words + kPlanesBytes);
  } else {
    planes.store(low, block.width, words);
  }
}

// Encodes a block.
template <class... Random>
HWY_INLINE void encode_block(const BitPlanes& planes, const float* x, const BlockCodes& block, uint8_t* words,
                             Random... random) {
  if (HWY_LIKELY(block.width <= kPlanes)) {
    encode_codes<false>(planes, x, block, words, random...);
  } else {
    encode_codes<true>(planes, x, block, words, random...);
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

// Decodes a block from the 32 bytes from its first word on, or 64 if its codes have more than 8 bits.
template <class Sink>
HWY_INLINE void decode_words(const BitPlanes& planes, const uint8_t* words, const BlockCodes& block, float* out) {
  if (HWY_UNLIKELY(block.width > kPlanes)) {
    return decode_wide_words<Sink>(planes, words, block.width, block.factor, out);
  }
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const auto scale = hn::Set(d, block.factor);
  const int shift = static_cast<int>(kPlanes - block.width);
  PlaneVector rows[kPlaneVectors];
  planes.load(words, block.width, rows);
  if constexpr (BitPlanes::kTakesWidths) {  // All differences fit in a byte, as codes of 8 bits have no zero point.
    for (auto& bytes : rows) bytes = hn::Sub(bytes, hn::Set(PlaneBytes(), block.zero_point));
  }
  for_each_vector(rows, [&](int64_t i, auto bytes) {
    const auto codes = BitPlanes::kTakesWidths
                           ? bytes
                           : hn::ShiftRightSame(hn::Sub(bytes, hn::Set(d_int, int32_t{block.zero_point})), shift);
    Sink::put(d, hn::Mul(scale, hn::ConvertTo(d, codes)), out + i);
  });
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_

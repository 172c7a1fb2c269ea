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

#include "ops/codec/variable_width.h"
#include "ops/cpu/wire/bit_planes-inl.h"
#include "ops/cpu/wire/element_lanes-inl.h"
#include "ops/cpu/wire/tile_inputs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::kVariableBlock;
using codec::wire::kWordBytes;
using codec::wire::StepCodes;

HWY_INLINE uint32_t width_at(const uint8_t* nibbles, int64_t block) {
  return codec::wire::width_of_nibble(codec::wire::nibble_at(nibbles, block));
}

#if HWY_TARGET != HWY_SCALAR

// Vectors of codes on their way to bytes: four of them become a vector of bytes.
using CodeFloats = hn::CappedTag<float, 8>;
using CodeLanes = hn::RebindToUnsigned<CodeFloats>;
inline constexpr int64_t kCodeLanes = hn::MaxLanes(CodeFloats());
static_assert(4 * kCodeLanes == kPlaneLanes, "four vectors of codes are one of bytes");

// Codes of kCodeLanes elements, all bits of them. Random words are those of the block's elements; without, to nearest.
template <class... Random>
HWY_INLINE hn::Vec<CodeLanes> code_lanes(const float* x, float inverse, Random... random) {
  const CodeFloats d;
  const hn::RebindToSigned<CodeFloats> d_int;
  const auto y = hn::Mul(hn::LoadU(d, x), hn::Set(d, inverse));
  if constexpr (sizeof...(Random) == 0) {
    return hn::BitCast(CodeLanes(), hn::NearestInt(y));
  } else {
    const auto below = hn::Floor(y);
    const auto fraction = hn::ConvertTo(d_int, hn::Mul(hn::Sub(y, below), hn::Set(d, 0x1p24F)));
    const auto sum = hn::Add(fraction, hn::BitCast(d_int, hn::ShiftRight<8>(hn::LoadU(CodeLanes(), random...))));
    return hn::BitCast(CodeLanes(), hn::Add(hn::ConvertTo(d_int, below), hn::ShiftRight<24>(sum)));
  }
}

// Writes the codes of a block, and behind its words anything up to 64 bytes from its first one on.
template <class... Random>
HWY_INLINE void encode_block(const float* x, float inverse, uint32_t width, uint8_t* words, Random... random) {
  const bool is_wide = width > kPlanes;
  const auto shift = static_cast<int>((is_wide ? 2 * kPlanes : kPlanes) - width);
  PlaneVector low[kPlaneVectors];  // The only bytes of codes that are not wide.
  PlaneVector high[kPlaneVectors];
  for (int64_t i = 0; i < kPlaneVectors; ++i) {
    hn::Vec<CodeLanes> codes[4];
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t first = i * kPlaneLanes + j * kCodeLanes;
      codes[j] = hn::ShiftLeftSame(code_lanes(x + first, inverse, random + first...), shift);
    }
    low[i] = join_low_bytes(CodeLanes(), codes);
    if (HWY_UNLIKELY(is_wide)) {
      for (auto& code : codes) code = hn::ShiftRight<8>(code);
      high[i] = join_low_bytes(CodeLanes(), codes);
    }
  }
  if (HWY_UNLIKELY(is_wide)) {
    store_planes(high, words);
    words += kPlanesBytes;
  }
  store_planes(low, words);
}

// Reads the 64 bytes from a block's first word on.
template <class Sink>
HWY_INLINE void decode_words(const uint8_t* words, uint32_t width, float step, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  constexpr int64_t kLanesOfFloat = hn::MaxLanes(d);
  const hn::Rebind<int8_t, decltype(d)> d_high;
  const hn::Rebind<uint8_t, decltype(d)> d_low;
  const auto scale = hn::Set(d, step);
  alignas(32) uint8_t high[kPlanesBytes];
  load_planes(words, high);
  const auto signed_bytes = [&](int64_t i) {
    return hn::PromoteTo(d_int, hn::LoadU(d_high, reinterpret_cast<const int8_t*>(high) + i));
  };
  if (HWY_LIKELY(width <= kPlanes)) {
    const int shift = static_cast<int>(kPlanes - width);
    for (int64_t i = 0; i < kVariableBlock; i += kLanesOfFloat) {
      Sink::put(d, hn::Mul(scale, hn::ConvertTo(d, hn::ShiftRightSame(signed_bytes(i), shift))), out + i);
    }
    return;
  }
  alignas(32) uint8_t low[kPlanesBytes];
  load_planes(words + kPlanesBytes, low);
  const int shift = static_cast<int>(2 * kPlanes - width);
  for (int64_t i = 0; i < kVariableBlock; i += kLanesOfFloat) {
    const auto low_bytes = hn::PromoteTo(d_int, hn::LoadU(d_low, low + i));
    const auto code = hn::ShiftRightSame(hn::Or(hn::ShiftLeft<kPlanes>(signed_bytes(i)), low_bytes), shift);
    Sink::put(d, hn::Mul(scale, hn::ConvertTo(d, code)), out + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_LANES_INL_H_

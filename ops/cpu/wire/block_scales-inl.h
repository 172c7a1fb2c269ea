// The scales of many blocks at once (ops/codec/wire_message.h). Included once per instruction set that has vectors, by
// files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_BLOCK_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_BLOCK_SCALES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_BLOCK_SCALES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_BLOCK_SCALES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "ops/codec/wire_message.h"
#include "ops/cpu/wire/tile_inputs-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FourMagnitudes = hn::Vec<hn::Full128<int32_t>>;

// Reduces a vector of magnitudes to four lanes, with the largest magnitude of each quarter of the lanes.
template <class D>
HWY_INLINE FourMagnitudes fold_to_four(D d, hn::Vec<D> magnitudes) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return magnitudes;
  } else {
    const hn::Half<D> d_half;
    return fold_to_four(d_half, hn::Max(hn::LowerHalf(d_half, magnitudes), hn::UpperHalf(d_half, magnitudes)));
  }
}

// The bits of one block's largest magnitude, which is the maximum of four lanes. As integers, magnitudes have the order
// of their values, and NaN is the greatest.
template <int64_t kBlock>
HWY_INLINE FourMagnitudes largest_of_block(const float* x) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_bits;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  static_assert(kBlock % static_cast<int64_t>(2 * hn::MaxLanes(d)) == 0, "a block must be pairs of vectors");
  const auto magnitudes = [&](int64_t i) { return hn::BitCast(d_bits, hn::Abs(hn::LoadU(d, x + i))); };
  auto largest0 = magnitudes(0);
  auto largest1 = magnitudes(lanes);
  for (int64_t i = 2 * lanes; i < kBlock; i += 2 * lanes) {
    largest0 = hn::Max(largest0, magnitudes(i));
    largest1 = hn::Max(largest1, magnitudes(i + lanes));
  }
  return fold_to_four(d_bits, hn::Max(largest0, largest1));
}

// The largest magnitude of each of four blocks, in order.
HWY_INLINE FourMagnitudes largest_of_each(FourMagnitudes a, FourMagnitudes b, FourMagnitudes c, FourMagnitudes d) {
  const hn::Full128<int32_t> d_bits;
  const hn::Full128<int64_t> d_pairs;
  const auto fold = [&](FourMagnitudes lower, FourMagnitudes upper) {
    const auto even = hn::InterleaveLower(d_bits, lower, upper);
    return hn::BitCast(d_pairs, hn::Max(even, hn::InterleaveUpper(d_bits, lower, upper)));
  };
  const auto ab = fold(a, b);
  const auto cd = fold(c, d);
  return hn::Max(hn::BitCast(d_bits, hn::InterleaveLower(d_pairs, ab, cd)),
                 hn::BitCast(d_bits, hn::InterleaveUpper(d_pairs, ab, cd)));
}

// The scales of a tile's blocks. The arrays have room for one more vector after the last block.
struct BlockScales {
  static constexpr int64_t kRoom = kTile / kLeastBlock + 16;
  alignas(64) int32_t largest[kRoom];  // Bits of the largest magnitude.
  alignas(64) uint32_t bits[kRoom];    // Bits of the scale, in the low half.
  alignas(64) float inverse[kRoom];
};

// How often a tile is read. Each pass prefetches an equal part of the upcoming tile.
enum class Passes { kOne = 1, kTwo = 2 };

template <int64_t kBlock, Passes kPasses>
HWY_INLINE void find_largest(const TileSource& source, int64_t blocks, int32_t* largest) {
  constexpr auto kShare = static_cast<int64_t>(kPasses);
  const float* const x = source.x;
  const hn::Full128<int32_t> d;
  int64_t i = 0;
  for (; i + 4 <= blocks; i += 4) {
    const float* const four = x + i * kBlock;
    if (source.upcoming != nullptr) {
      prefetch(source.upcoming + i * kBlock / kShare, 0, 4 * kBlock * static_cast<int64_t>(sizeof(float)) / kShare);
    }
    hn::StoreU(
        largest_of_each(largest_of_block<kBlock>(four), largest_of_block<kBlock>(four + kBlock),
                        largest_of_block<kBlock>(four + 2 * kBlock), largest_of_block<kBlock>(four + 3 * kBlock)),
        d, largest + i);
  }
  for (; i < blocks; ++i) {
    largest[i] = hn::GetLane(hn::MaxOfLanes(d, largest_of_block<kBlock>(x + i * kBlock)));
  }
}

// codec::wire::block_scale of finite magnitudes, as the bits of float32.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> scale_lanes(D d, hn::Vec<D> magnitude, float greatest_code) {
  const hn::RebindToSigned<D> d_bits;
  constexpr auto kUnit = static_cast<int32_t>(codec::wire::kScaleUnit);
  const auto greatest = hn::Set(d, greatest_code);
  const auto cut = hn::And(hn::BitCast(d_bits, hn::Div(magnitude, greatest)), hn::Set(d_bits, -kUnit));
  const auto too_small = hn::RebindMask(d_bits, hn::Lt(hn::Mul(hn::BitCast(d, cut), greatest), magnitude));
  const auto scale = hn::Add(cut, hn::IfThenElseZero(too_small, hn::Set(d_bits, kUnit)));
  const auto least = hn::Set(d_bits, static_cast<int32_t>(codec::wire::kLeastScaleBits));
  return hn::IfThenZeroElse(hn::Lt(scale, least), scale);
}

// codec::wire::block_scale and inverse_scale of each block. Returns false if a block contains NaN or Inf; then only
// `largest` is valid.
template <class Format>
HWY_INLINE bool find_scales(const TileSource& source, int64_t blocks, BlockScales& scales) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d_bits;
  const hn::RebindToSigned<decltype(d)> d_int;
  find_largest<Format::kBlock, Passes::kTwo>(source, blocks, scales.largest);
  hn::StoreU(hn::Zero(d_int), d_int, scales.largest + blocks);
  auto most = hn::Zero(d_int);
  for (int64_t i = 0; i < blocks; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto largest = hn::LoadU(d_int, scales.largest + i);
    most = hn::Max(most, largest);
    const auto scale = scale_lanes(d, hn::BitCast(d, largest), Format::Element::kGreatest);
    const auto is_zero = hn::Eq(scale, hn::Zero(d_int));
    const auto inverse = hn::Div(hn::Set(d, 1.0F), hn::BitCast(d, scale));
    hn::StoreU(hn::ShiftRight<16>(hn::BitCast(d_bits, scale)), d_bits, scales.bits + i);
    hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(d, is_zero), inverse), d, scales.inverse + i);
  }
  return hn::AllFalse(d_int, hn::Gt(most, hn::Set(d_int, static_cast<int32_t>(codec::kInfBits) - 1)));
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_BLOCK_SCALES_INL_H_

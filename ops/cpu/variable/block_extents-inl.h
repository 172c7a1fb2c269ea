// The range of blocks' numbers on both sides of 0 (ops/codec/variable_headers.h). Included once per instruction set by
// files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_BLOCK_EXTENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_BLOCK_EXTENTS_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_BLOCK_EXTENTS_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_BLOCK_EXTENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "ops/codec/variable_headers.h"
#include "ops/cpu/variable/variable_kernels.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::BlockExtent;
using codec::wire::kVariableBlock;

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void extents_of_tile(const TileSource& source, int64_t n, BlockExtent* extents) {
  for (int64_t i = 0; i * kVariableBlock < n; ++i) {
    extents[i] = codec::wire::extent_of_block(source.x, n, i);
  }
}

#else

using SideInts = hn::ScalableTag<int32_t>;
using SideVector = hn::Vec<SideInts>;
inline constexpr int64_t kSideLanes = hn::MaxLanes(SideInts());

// The maxima of neighbouring lanes, first of `lower`, then of `upper`.
HWY_INLINE SideVector pairwise_max(SideVector lower, SideVector upper) {
  const SideInts d;
  return hn::Max(hn::ConcatEven(d, upper, lower), hn::ConcatOdd(d, upper, lower));
}

// The bits of the largest positive numbers, and of the largest magnitudes of negative numbers, of kBlocks blocks. A
// value is the maximum of some lanes; they are ordered by block, the positive side first. A value is negative, or the
// bits of 0, if the block has no number on that side. As signed integers, the greatest bits belong to the largest
// positive float32; as unsigned integers, to the most negative one. NaN is beyond all numbers of its sign.
template <int64_t kBlocks>
HWY_INLINE SideVector sides_of_blocks(const float* x) {
  if constexpr (kBlocks > 1) {
    constexpr int64_t kHalf = kBlocks / 2;
    return pairwise_max(sides_of_blocks<kHalf>(x), sides_of_blocks<kHalf>(x + kHalf * kVariableBlock));
  } else {
    const SideInts d;
    const hn::RebindToUnsigned<SideInts> d_bits;
    const hn::RebindToFloat<SideInts> d_float;
    const auto bits = [&](int64_t i) { return hn::BitCast(d_bits, hn::LoadU(d_float, x + i)); };
    auto positive = hn::BitCast(d, bits(0));
    auto negative = bits(0);
    for (int64_t i = kSideLanes; i < kVariableBlock; i += kSideLanes) {
      positive = hn::Max(positive, hn::BitCast(d, bits(i)));
      negative = hn::Max(negative, bits(i));
    }
    return pairwise_max(positive, hn::BitCast(d, hn::Xor(negative, hn::Set(d_bits, codec::kSignBit))));
  }
}

// codec::wire::bfloat16_above of such a value.
HWY_INLINE SideVector bfloat16_above(SideVector side) {
  const SideInts d;
  const auto magnitude = hn::Min(hn::Max(side, hn::Zero(d)), hn::Set(d, static_cast<int32_t>(codec::kInfBits)));
  return hn::ShiftRight<16>(hn::Add(magnitude, hn::Set(d, static_cast<int32_t>(codec::wire::kScaleUnit - 1))));
}

// The extents of as many blocks as a vector has lanes.
HWY_INLINE SideVector extents_of_blocks(const float* x) {
  static_assert(kGrainBlocks % kSideLanes == 0, "a tile's blocks are whole vectors");
  const SideInts d;
  constexpr int64_t kHalf = kSideLanes / 2;
  const auto lower = sides_of_blocks<kHalf>(x);
  const auto upper = sides_of_blocks<kHalf>(x + kHalf * kVariableBlock);
  const auto positive = bfloat16_above(hn::ConcatEven(d, upper, lower));
  const auto negative = bfloat16_above(hn::ConcatOdd(d, upper, lower));
  const auto sign = hn::IfThenElseZero(
      hn::Gt(positive, negative), hn::BitCast(d, hn::Set(hn::RebindToUnsigned<SideInts>(), BlockExtent::kPositive)));
  const auto magnitudes = hn::Or(hn::ShiftLeft<16>(hn::Max(positive, negative)), hn::Min(positive, negative));
  return hn::Or(sign, magnitudes);
}

HWY_INLINE void extents_of_whole_tile(const TileSource& source, BlockExtent* extents) {
  for (int64_t i = 0; i < kGrainBlocks; i += kSideLanes) {
    if (source.upcoming != nullptr) {
      prefetch(source.upcoming + i * kVariableBlock, 0,
               kSideLanes * kVariableBlock * static_cast<int64_t>(sizeof(float)));
    }
    hn::StoreU(extents_of_blocks(source.x + i * kVariableBlock), SideInts(), reinterpret_cast<int32_t*>(extents + i));
  }
}

// The extents of the blocks of n <= kTile numbers.
HWY_INLINE void extents_of_tile(const TileSource& source, int64_t n, BlockExtent* extents) {
  if (HWY_LIKELY(n == kTile)) {
    return extents_of_whole_tile(source, extents);
  }
  alignas(64) float padded[kTile] = {};
  std::copy_n(source.x, n, padded);
  BlockExtent of_tile[kGrainBlocks];
  extents_of_whole_tile({padded, nullptr}, of_tile);
  std::copy_n(of_tile, codec::wire::blocks_of(n), extents);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_BLOCK_EXTENTS_INL_H_

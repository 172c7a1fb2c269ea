// Messages of formats with blocks (ops/codec/wire_message.h), many elements at a time: scales of blocks, and codes.
// Included once per instruction set that has vectors, by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_BLOCK_MESSAGE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_BLOCK_MESSAGE_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_BLOCK_MESSAGE_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_BLOCK_MESSAGE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/codec/wire_message.h"
#include "ops/cpu/wire/element_lanes-inl.h"
#include "ops/cpu/wire/random_words-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

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

inline constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());

// Encodes and decodes multiples of kWhole elements, at most a tile. Decoded vectors are passed to a Sink of
// wire_tiles-inl.h.
template <class Format>
struct BlockMessageLanes {
  using Element = typename Format::Element;
  using Lanes = ElementLanes<Element>;
  using D = hn::ScalableTag<float>;
  static constexpr int64_t kBlock = Format::kBlock;
  static constexpr int64_t kGroup = 4 * kLanes;  // Elements whose codes fill a vector.
  static constexpr int64_t kWhole = std::max(kBlock, kGroup);
  static_assert(kBlock % kPackedCodes == 0, "codes of one block must be packed without those of the next");

  static void encode(const TileSource& source, int64_t n, const codec::wire::Rounding& rounding, uint8_t* bytes) {
    BlockScales scales;
    if (!find_scales<Format>(source, n / kBlock, scales)) {
      return encode_not_finite(source.x, n, rounding, bytes);
    }
    for (int64_t block = 0; block < n / kBlock; ++block) {
      const auto scale = static_cast<uint16_t>(scales.bits[block]);
      std::memcpy(bytes + block * Format::kBlockBytes, &scale, sizeof(scale));
    }
    if (rounding.stochastic) {
      RandomWords<kTile> random;
      encode_codes(source, n, scales.inverse, random.fill(rounding, n), bytes);
    } else {
      encode_codes(source, n, scales.inverse, nullptr, bytes);
    }
  }

  template <class Sink>
  static void decode(const uint8_t* bytes, int64_t n, float* out) {
    const D d;
    for (int64_t i = 0; i < n; i += kBlock, bytes += Format::kBlockBytes) {
      if constexpr (Sink::kFetchesAhead) {
        prefetch(bytes, kTile / kBlock * Format::kBlockBytes, Format::kBlockBytes);
      }
      uint16_t scale_bits = 0;
      std::memcpy(&scale_bits, bytes, sizeof(scale_bits));
      const auto scale = hn::Set(d, codec::wire::scale_value(scale_bits));
      alignas(64) uint8_t unpacked[kBlock];
      const uint8_t* const codes = unpack_block(bytes + codec::wire::kScaleBytes, unpacked);
      for (int64_t j = 0; j < kBlock; j += kLanes) {
        Sink::put(d, hn::Mul(scale, Lanes::decode(d, codes + j)), out + i + j);
      }
    }
  }

 private:
  // Blocks with a NaN or Inf have kNanScale and codes of 0.
  static HWY_NOINLINE void encode_not_finite(const float* x, int64_t n, const codec::wire::Rounding& rounding,
                                             uint8_t* bytes) {
    float finite[kTile];
    bool is_finite[kTile / kBlock];
    for (int64_t i = 0; i < n; i += kBlock) {
      is_finite[i / kBlock] = codec::wire::largest_magnitude(x + i, kBlock) < codec::kInfBits;
      is_finite[i / kBlock] ? std::copy_n(x + i, kBlock, finite + i) : std::fill_n(finite + i, kBlock, 0.0F);
    }
    encode({finite, nullptr}, n, rounding, bytes);
    for (int64_t block = 0; block < n / kBlock; ++block) {
      if (!is_finite[block]) {
        std::memcpy(bytes + block * Format::kBlockBytes, &codec::wire::kNanScale, sizeof(codec::wire::kNanScale));
      }
    }
  }

  // Rounds to nearest if `random` is null.
  static HWY_INLINE void encode_codes(const TileSource& source, int64_t n, const float* inverse, const uint32_t* random,
                                      uint8_t* bytes) {
    const float* const x = source.x;
    for (int64_t i = 0; i < n; i += kWhole) {
      if (source.upcoming != nullptr) {
        prefetch(source.upcoming + (kTile + i) / 2, 0, kWhole * 2);  // The second half.
      }
      prefetch(bytes + i / kBlock * Format::kBlockBytes, kTile / kBlock * Format::kBlockBytes,
               kWhole / kBlock * Format::kBlockBytes);
      alignas(64) uint8_t codes[kWhole];
      for (int64_t j = 0; j < kWhole; j += kGroup) {
        const auto group = random == nullptr ? encode_group(x + i + j, inverse + (i + j) / kBlock)
                                             : encode_group(x + i + j, inverse + (i + j) / kBlock, random + i + j);
        hn::Store(group, hn::Repartition<uint8_t, D>(), codes + j);
      }
      for (int64_t j = 0; j < kWhole; j += kBlock) {
        pack_block(codes + j, bytes + (i + j) / kBlock * Format::kBlockBytes + codec::wire::kScaleBytes);
      }
    }
  }

  // The codes of kGroup elements; the inverse scale of their first block is inverse[0].
  template <class... Random>
  static HWY_INLINE hn::Vec<hn::Repartition<uint8_t, D>> encode_group(const float* x, const float* inverse,
                                                                      Random... random) {
    const D d;
    const hn::RebindToUnsigned<D> d_bits;
    const auto code = [&](int64_t i) {
      const auto y = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse[i / kBlock]));
      return Lanes::encode(d, y, hn::LoadU(d_bits, random + i)...);
    };
    const hn::Vec<decltype(d_bits)> codes[4] = {code(0), code(kLanes), code(2 * kLanes), code(3 * kLanes)};
    return join_low_bytes(d_bits, codes);
  }

  static HWY_INLINE void pack_block(const uint8_t* codes, uint8_t* packed) {
    if constexpr (Format::kBits == 8) {
      std::memcpy(packed, codes, kBlock);
    } else {
      for (int64_t i = 0; i < kBlock; i += kPackedCodes) {
        pack<Format::kBits>(codes + i, packed + i * Format::kBits / 8);
      }
    }
  }

  // The block's codes as bytes: in the message, or unpacked.
  static HWY_INLINE const uint8_t* unpack_block(const uint8_t* packed, uint8_t* unpacked) {
    if constexpr (Format::kBits == 8) {
      return packed;
    } else {
      for (int64_t i = 0; i < kBlock; i += kPackedCodes) {
        unpack<Format::kBits>(packed + i * Format::kBits / 8, unpacked + i);
      }
      return unpacked;
    }
  }
};

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // NARROWCAST_OPS_CPU_WIRE_BLOCK_MESSAGE_LANES_INL_H_

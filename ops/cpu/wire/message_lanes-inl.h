// Messages (ops/codec/wire_message.h), many elements at a time. Included once per instruction set that has vectors, by
// files that use hwy/foreach_target.h.
//
// MessageLanes<Format> encodes and decodes multiples of kWhole elements, at most a tile, of a format with blocks;
// NumberMessageLanes<Format> does so for a format without blocks. Decoded vectors are passed to a Sink of
// wire_tiles-inl.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_MESSAGE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_MESSAGE_LANES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_MESSAGE_LANES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_MESSAGE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/codec/wire_message.h"
#include "ops/cpu/lanes/float_lanes-inl.h"
#include "ops/cpu/wire/block_scales-inl.h"
#include "ops/cpu/wire/element_lanes-inl.h"
#include "ops/cpu/wire/tile_inputs-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());

template <class Format>
struct MessageLanes {
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

#endif  // NARROWCAST_OPS_CPU_WIRE_MESSAGE_LANES_INL_H_

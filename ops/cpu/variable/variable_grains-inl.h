// Grains of a variable format (ops/codec/variable_width.h): decoding of their blocks' headers, and their codes in a
// message. Included once per instruction set by files that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "ops/cpu/variable/variable_headers-inl.h"
#include "ops/cpu/variable/variable_kernels.h"
#include "ops/cpu/variable/variable_lanes-inl.h"
#include "ops/cpu/wire/random_words-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::kVariableBlock;
using codec::wire::kVariableGroup;
using codec::wire::kWordBytes;
using codec::wire::VariableMessage;

// The destination of a grain's codes, from the first byte to one after the last.
struct VariableGrain {
  const uint8_t* headers;
  uint8_t* begin;
  const uint8_t* end;
};

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec is used.

HWY_INLINE int64_t bytes_of_grain(const uint8_t* headers) {
  return codec::wire::bytes_of_headers(headers, kGrainBlocks);
}

void encode_grain(const TileSource& source, int64_t n, uint16_t step, const Rounding& rounding,
                  const VariableGrain& grain) {
  codec::wire::encode_variable_group(source.x, n, {step, grain.headers}, rounding, grain.begin);
}

template <class Sink>
void decode_grain(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  float values[kVariableGroup];
  codec::wire::decode_variable_group(message, message.headers + block, begin, n, values);
  put_all<Sink>(values, n, out);
}

#else

// Tables of bytes, indexed by the upper or the lower half of a header.
struct HeaderTables {
  alignas(16) uint8_t widths_by_upper[16];
  alignas(16) uint8_t widths_by_lower[16];  // For headers whose upper half is 0.
  alignas(16) uint8_t zero_points_by_upper[16];
};

inline constexpr HeaderTables kHeaderTables = [] {
  HeaderTables tables{};
  for (uint32_t half = 0; half < 16; ++half) {
    tables.widths_by_upper[half] = static_cast<uint8_t>(codec::wire::width_of_header(half << 4));
    tables.widths_by_lower[half] = static_cast<uint8_t>(codec::wire::width_of_header(half));
    const uint32_t header = half << 4 | codec::wire::kZeroPointBit;
    tables.zero_points_by_upper[half] = static_cast<uint8_t>(
        zero_point_of_planes(codec::wire::zero_point_of_header(header), codec::wire::width_of_header(header)));
  }
  return tables;
}();

using HeaderBytes = hn::CappedTag<uint8_t, kGrainBlocks>;
using HeaderVector = hn::Vec<HeaderBytes>;
inline constexpr int64_t kHeaderLanes = hn::MaxLanes(HeaderBytes());

// The properties of the codes of kHeaderLanes blocks, from their headers.
struct HeaderLanes {
  HeaderVector header;
  HeaderVector upper;

  HWY_INLINE explicit HeaderLanes(const uint8_t* headers)
      : header(hn::LoadU(HeaderBytes(), headers)), upper(lower_half(upper_half_below(header))) {}

  HWY_INLINE HeaderVector widths() const {
    const auto is_low = hn::Eq(upper, hn::Zero(HeaderBytes()));
    return hn::IfThenElse(is_low, looked_up(kHeaderTables.widths_by_lower, lower_half(header)),
                          looked_up(kHeaderTables.widths_by_upper, upper));
  }

  HWY_INLINE HeaderVector zero_points() const {
    const auto bit = hn::Set(HeaderBytes(), static_cast<uint8_t>(codec::wire::kZeroPointBit));
    return hn::IfThenElseZero(hn::TestBit(header, bit), looked_up(kHeaderTables.zero_points_by_upper, upper));
  }

 private:
  static HWY_INLINE HeaderVector lower_half(HeaderVector bytes) {
    return hn::And(bytes, hn::Set(HeaderBytes(), uint8_t{15}));
  }

  // The bits above contain the lower half of the next byte.
  static HWY_INLINE HeaderVector upper_half_below(HeaderVector bytes) {
    const hn::Repartition<uint16_t, HeaderBytes> d_pairs;
    return hn::BitCast(HeaderBytes(), hn::ShiftRight<4>(hn::BitCast(d_pairs, bytes)));
  }

  static HWY_INLINE HeaderVector looked_up(const uint8_t (&table)[16], HeaderVector places) {
    return hn::TableLookupBytes(hn::LoadDup128(HeaderBytes(), table), places);
  }
};

HWY_INLINE int64_t bytes_of_grain(const uint8_t* headers) {
  const hn::Repartition<uint64_t, HeaderBytes> d_sums;
  auto widths = HeaderLanes(headers).widths();
  for (int64_t i = kHeaderLanes; i < kGrainBlocks; i += kHeaderLanes) {
    widths = hn::Add(widths, HeaderLanes(headers + i).widths());
  }
  return static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d_sums, hn::SumsOf8(widths)))) * kWordBytes;
}

// The widths of a grain's blocks.
struct GrainWidths {
  alignas(32) uint8_t at[kGrainBlocks];

  HWY_INLINE explicit GrainWidths(const uint8_t* headers) {
    for (int64_t i = 0; i < kGrainBlocks; i += kHeaderLanes) {
      hn::Store(HeaderLanes(headers + i).widths(), HeaderBytes(), at + i);
    }
  }
};

// zero_point_of_planes of a grain's blocks.
struct GrainZeroPoints {
  alignas(32) uint8_t at[kGrainBlocks];

  HWY_INLINE explicit GrainZeroPoints(const uint8_t* headers) {
    for (int64_t i = 0; i < kGrainBlocks; i += kHeaderLanes) {
      hn::Store(HeaderLanes(headers + i).zero_points(), HeaderBytes(), at + i);
    }
  }
};

// The steps of a grain's blocks: codec::wire::step_of_block.
struct GrainSteps {
  alignas(64) float at[kGrainBlocks];

  HWY_INLINE GrainSteps(uint16_t step, const uint8_t* headers) {
    for_each_vector(step, headers, [&](int64_t i, auto steps) { hn::Store(steps, BlockFloats(), at + i); });
  }

  // Calls body(first block, steps).
  template <class Body>
  static HWY_INLINE void for_each_vector(uint16_t step, const uint8_t* headers, const Body& body) {
    constexpr uint32_t kHalfOfFirstFaint = codec::wire::kFirstFaint / 2;
    const BlockBits d;
    const BlockInts d_int;
    const hn::Rebind<uint8_t, BlockBits> d_bytes;
    const auto message = hn::Set(d, uint32_t{step} << 16);
    for (int64_t i = 0; i < kGrainBlocks; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto header = hn::PromoteTo(d, hn::LoadU(d_bytes, headers + i));
      const auto is_above = [&](uint32_t least) {
        return hn::RebindMask(d, hn::Gt(hn::BitCast(d_int, header), set_ints(least - 1)));
      };
      const auto eighths = hn::And(hn::ShiftRight<2>(header), hn::Set(d, codec::wire::kMostFraction));
      const auto halved =
          hn::BitCast(d, hn::Max(hn::BitCast(d_int, hn::ShiftRight<1>(header)), set_ints(kHalfOfFirstFaint)));
      const auto quarters = hn::Sub(halved, hn::Set(d, kHalfOfFirstFaint));  // 0 if the block has the message's step.
      const auto distance =
          hn::IfThenElse(is_above(codec::wire::kFirstOwn), hn::ShiftLeft<codec::wire::kFractionShift>(eighths),
                         hn::ShiftLeft<codec::wire::kFaintShift>(quarters));
      const auto sign = hn::IfThenElseZero(is_above(codec::wire::kFirstFaint), hn::ShiftLeft<31>(header));
      const auto magnitude = hn::Sub(hn::Max(message, distance), distance);  // At least 0.
      body(i, hn::BitCast(BlockFloats(), hn::Xor(magnitude, sign)));
    }
  }
};

// The factors by which the elements of a grain's blocks become numbers to be rounded to codes.
struct GrainInverses {
  alignas(64) float at[kGrainBlocks];

  HWY_INLINE GrainInverses(uint16_t step, const uint8_t* headers) {
    const BlockFloats d;
    GrainSteps::for_each_vector(step, headers,
                                [&](int64_t i, auto steps) { hn::Store(hn::Div(hn::Set(d, 1.0F), steps), d, at + i); });
  }
};

// The headers of n elements of a grain, padded to a whole grain, since they are read as vectors.
struct WholeHeaders {
  uint8_t at[kGrainBlocks] = {};

  HWY_INLINE WholeHeaders(const uint8_t* headers, int64_t n) {
    std::memcpy(at, headers, static_cast<size_t>(codec::wire::blocks_of(n)));
  }
};

// The number of bytes from a block's first word on that kernels may write or read.
constexpr int64_t kReach = 2 * kPlanesBytes;

// Writes the words of whole blocks, and nothing beyond the grain's end: those bytes may belong to another thread.
template <bool kFetchesAhead, class... Random>
HWY_INLINE void encode_blocks(const TileSource& source, int64_t n, uint16_t step, const VariableGrain& grain,
                              Random... random) {
  const BitPlanes planes;
  const GrainWidths widths(grain.headers);
  const GrainZeroPoints zero_points(grain.headers);
  const GrainInverses inverses(step, grain.headers);
  int64_t i = 0;
  const auto encode_next = [&](uint8_t* words) HWY_ATTR {
    const int64_t block = i / kVariableBlock;
    if constexpr (kFetchesAhead) {
      prefetch(source.upcoming + i, 0, kVariableBlock * static_cast<int64_t>(sizeof(float)));
    }
    encode_block(planes, source.x + i, {inverses.at[block], widths.at[block], zero_points.at[block]}, words,
                 random + i...);
    i += kVariableBlock;
    return words + widths.at[block] * kWordBytes;
  };
  uint8_t* to = grain.begin;
  while (i < n && grain.end - to >= kReach) {
    to = encode_next(to);
  }
  alignas(64) uint8_t rest[2 * kReach];
  uint8_t* end_of_rest = rest;
  while (i < n) {
    end_of_rest = encode_next(end_of_rest);
  }
  std::memcpy(to, rest, static_cast<size_t>(end_of_rest - rest));
}

template <bool kFetchesAhead>
HWY_INLINE void encode_blocks(const TileSource& source, int64_t n, uint16_t step, const Rounding& rounding,
                              const VariableGrain& grain) {
  if (!rounding.stochastic) {
    return encode_blocks<kFetchesAhead>(source, n, step, grain);
  }
  RandomWords<kTile> random;
  encode_blocks<kFetchesAhead>(source, n, step, grain, random.fill(rounding, n));
}

HWY_NOINLINE void encode_grain(const TileSource& source, int64_t n, uint16_t step, const Rounding& rounding,
                               const VariableGrain& grain) {
  if (n == kTile) {
    return source.upcoming == nullptr ? encode_blocks<false>(source, n, step, rounding, grain)
                                      : encode_blocks<true>(source, n, step, rounding, grain);
  }
  const WholeHeaders headers(grain.headers, n);
  const int64_t whole = codec::wire::blocks_of(n) * kVariableBlock;
  alignas(64) float padded[kTile];
  std::copy_n(source.x, n, padded);
  std::fill_n(padded + n, whole - n, 0.0F);
  encode_blocks<false>({padded, nullptr}, whole, step, rounding, {headers.at, grain.begin, grain.end});
}

// Properties of a grain's blocks for decoding.
struct GrainBlocks {
  GrainWidths widths;
  GrainZeroPoints zero_points;
  GrainSteps steps;

  HWY_INLINE GrainBlocks(uint16_t step, const uint8_t* headers)
      : widths(headers), zero_points(headers), steps(step, headers) {}
};

// Decodes a grain's blocks. All bytes within the kernels' reach from `words` on must be readable.
template <class Sink>
HWY_INLINE void decode_blocks(const GrainBlocks& blocks, const uint8_t* words, int64_t n, float* out) {
  alignas(64) static constexpr uint8_t kZeros[kReach] = {};
  const BitPlanes planes;
  for (int64_t k = 0; k < n / kVariableBlock; ++k) {
    const uint32_t width = blocks.widths.at[k];
    decode_words<Sink>(planes, width == 0 ? kZeros : words, {blocks.steps.at[k], width, blocks.zero_points.at[k]},
                       out + k * kVariableBlock);
    words += width * kWordBytes;
  }
}

// decode_grain for a grain that is shorter, or whose message ends before it or less than kReach bytes after it.
template <class Sink>
HWY_NOINLINE void decode_end(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  const WholeHeaders headers(message.headers + block, n);
  const int64_t bytes = bytes_of_grain(headers.at);
  alignas(64) float values[kTile];
  if (begin + bytes > message.code_bytes) {
    std::fill_n(values, n, codec::float_of_bits(codec::kQuietNanBits));
  } else {
    alignas(64) uint8_t words[kGrainBlocks * codec::wire::kMostWidth * kWordBytes + kReach];
    std::memcpy(words, message.codes + begin, static_cast<size_t>(bytes));
    decode_blocks<Assign>({message.step, headers.at}, words, codec::wire::blocks_of(n) * kVariableBlock, values);
  }
  put_all<Sink>(values, n, out);
}

template <class Sink>
HWY_INLINE void decode_grain(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  const uint8_t* const headers = message.headers + block;
  if (HWY_LIKELY(n == kTile && begin + bytes_of_grain(headers) + kReach <= message.code_bytes)) {
    decode_blocks<Sink>({message.step, headers}, message.codes + begin, kTile, out);
  } else {
    decode_end<Sink>(message, block, begin, n, out);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_

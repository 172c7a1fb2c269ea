// Grains of a variable format (ops/codec/variable_width.h): their blocks' headers, and their codes in a message.
// Included once per instruction set by files that use hwy/foreach_target.h.
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

#include "ops/cpu/wire/variable_kernels.h"
#include "ops/cpu/wire/variable_lanes-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::kVariableGroup;
using codec::wire::VariableMessage;

// Where a grain's codes go: from its first byte to behind its last.
struct VariableGrain {
  const uint8_t* headers;
  uint8_t* begin;
  const uint8_t* end;
};

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec.

HWY_INLINE void largest_of_grain(const TileSource& source, int64_t n, uint32_t* largest) {
  for (int64_t i = 0; i * kVariableBlock < n; ++i) {
    largest[i] = codec::wire::largest_of_block(source.x, n, i);
  }
}

int64_t bytes_of_widths(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  int64_t words = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    words += codes.width(largest[i]);
  }
  return words * kWordBytes;
}

HWY_INLINE void headers_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* headers) {
  for (int64_t i = 0; i < kGrainBlocks; ++i) {
    headers[i] = static_cast<uint8_t>(codes.header(largest[i]));
  }
}

HWY_INLINE int64_t bytes_of_grain(const uint8_t* headers) {
  return codec::wire::bytes_of_headers(headers, kGrainBlocks);
}

void encode_grain(const TileSource& source, int64_t n, uint16_t step, const Rounding& rounding,
                  const VariableGrain& grain) {
  codec::wire::encode_variable_group(source.x, n, step, grain.headers, rounding, grain.begin);
}

template <class Sink>
void decode_grain(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  float values[kVariableGroup];
  codec::wire::decode_variable_group(message, message.headers + block, begin, n, values);
  put_all<Sink>(values, n, out);
}

#else

HWY_INLINE void largest_of_grain(const TileSource& source, int64_t n, uint32_t* largest) {
  const int64_t blocks = n / kVariableBlock;
  find_largest<kVariableBlock, Passes::kOne>(source, blocks, reinterpret_cast<int32_t*>(largest));
  if (n % kVariableBlock != 0) {
    largest[blocks] = codec::wire::largest_of_block(source.x, n, blocks);
  }
}

using BlockFloats = hn::ScalableTag<float>;  // Lanes are blocks.
using BlockInts = hn::RebindToSigned<BlockFloats>;
using BlockBits = hn::RebindToUnsigned<BlockFloats>;

// Magnitudes, as float32's bits.
HWY_INLINE hn::Vec<BlockInts> load_magnitudes(const uint32_t* largest) {
  return hn::LoadU(BlockInts(), reinterpret_cast<const int32_t*>(largest));
}

// StepCodes::width of the largest magnitudes of blocks.
class WidthLanes {
 public:
  HWY_INLINE explicit WidthLanes(const StepCodes& codes)
      : inverse_(hn::Set(BlockFloats(), codes.inverse)),
        below_faint_(hn::Set(BlockInts(), static_cast<int32_t>(codes.least_faint) - 1)),
        stochastic_(codes.stochastic) {}

  // Of a block that is neither zeros nor faint the digits of the greatest code, and a sign.
  HWY_INLINE hn::Vec<BlockInts> of(hn::Vec<BlockInts> largest) const {
    const BlockFloats d;
    const BlockInts d_int;
    const auto y = hn::Mul(hn::BitCast(d, largest), inverse_);
    const auto rounder = hn::Set(d, 0x1p23F);
    const auto code = hn::BitCast(d_int, stochastic_ ? hn::Ceil(y) : hn::Sub(hn::Add(y, rounder), rounder));
    const auto digits = hn::Sub(hn::ShiftRight<23>(code), hn::Set(d_int, 125));
    const auto faint = hn::Set(d_int, static_cast<int32_t>(codec::wire::kFaintWidth));
    return hn::IfThenElseZero(hn::Gt(largest, below_faint_), hn::Max(digits, faint));
  }

 private:
  hn::Vec<BlockFloats> inverse_;
  hn::Vec<BlockInts> below_faint_;
  bool stochastic_;
};

int64_t bytes_of_widths(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  const BlockInts d;
  constexpr int64_t kAtOnce = int64_t{1} << 22;  // A lane holds the sum of so many.
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const WidthLanes widths(codes);
  int64_t words = 0;
  for (int64_t begin = 0; begin < blocks; begin += kAtOnce) {
    const int64_t end = std::min(begin + kAtOnce, blocks);
    auto sums0 = hn::Zero(d);
    auto sums1 = hn::Zero(d);
    for (int64_t i = begin; i < end; i += 2 * lanes) {  // Zeros are behind the last one.
      sums0 = hn::Add(sums0, widths.of(load_magnitudes(largest + i)));
      sums1 = hn::Add(sums1, widths.of(load_magnitudes(largest + i + lanes)));
    }
    words += hn::GetLane(hn::SumOfLanes(d, hn::Add(sums0, sums1)));
  }
  return words * kWordBytes;
}

// StepCodes::header of each block.
HWY_INLINE void headers_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* headers) {
  const BlockFloats d;
  const BlockInts d_int;
  const hn::Rebind<uint8_t, BlockFloats> d_bytes;
  const auto set = [&](uint32_t number) { return hn::Set(d_int, static_cast<int32_t>(number)); };
  const auto step = set(uint32_t{codes.step} << 16);
  const auto beyond = hn::Set(d, StepCodes::beyond_codes(codes.stochastic));
  const auto faint_width = set(codec::wire::kFaintWidth);
  const auto most_fraction = set(codec::wire::kMostFraction);  // Of a half, too, beyond which faint blocks are far.
  const auto most_faint = set(codes.most_faint());
  const auto far = set((codec::wire::kHeaderSteps << 4) + codec::wire::kFaintWidth - codec::wire::kFarFaint);
  const WidthLanes widths(codes);
  for (int64_t i = 0; i < kGrainBlocks; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto bits = load_magnitudes(largest + i);
    const auto width = widths.of(bits);
    const auto most = hn::Sub(hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(width, set(126)))), beyond);
    const auto needed = hn::BitCast(d_int, hn::Div(hn::BitCast(d, bits), most));
    const auto distance = hn::Max(hn::Sub(step, needed), hn::Zero(d_int));
    const auto sixteenths = hn::Min(hn::ShiftRight<codec::wire::kFractionShift>(distance), most_fraction);
    const auto quarters = hn::Min(hn::ShiftRight<codec::wire::kFaintShift>(distance), most_faint);
    const auto upper = hn::IfThenElse(hn::Gt(width, faint_width), sixteenths, quarters);
    const auto header = hn::Add(width, hn::ShiftLeft<4>(upper));
    const auto in_byte = hn::Sub(header, hn::IfThenElseZero(hn::Gt(upper, most_fraction), far));
    const auto of_zeros = hn::Eq(width, hn::Zero(d_int));
    hn::StoreU(hn::DemoteTo(d_bytes, hn::IfThenZeroElse(of_zeros, in_byte)), d_bytes, headers + i);
  }
}

// The widths of 16 blocks: the lower halves of their headers, and one more of those that are 1.
HWY_INLINE hn::Vec<Bytes16> widths_of_headers(const uint8_t* headers) {
  const Bytes16 d;
  const auto far = hn::Set(d, static_cast<uint8_t>(codec::wire::kFarFaint));
  const auto lower = hn::And(hn::LoadU(d, headers), hn::Set(d, uint8_t{15}));
  return hn::Add(lower, hn::IfThenElseZero(hn::Eq(lower, far), far));
}

static_assert(kGrainBlocks == 32, "a grain's headers are two vectors");

HWY_INLINE int64_t bytes_of_grain(const uint8_t* headers) {
  const hn::Repartition<uint64_t, Bytes16> d_sums;
  const auto widths = hn::Add(widths_of_headers(headers), widths_of_headers(headers + 16));
  return static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d_sums, hn::SumsOf8(widths)))) * kWordBytes;
}

// Of a grain's blocks.
struct GrainWidths {
  alignas(16) uint8_t at[kGrainBlocks];

  HWY_INLINE explicit GrainWidths(const uint8_t* headers) {
    hn::Store(widths_of_headers(headers), Bytes16(), at);
    hn::Store(widths_of_headers(headers + 16), Bytes16(), at + 16);
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
    const BlockBits d;
    const hn::Rebind<uint8_t, BlockBits> d_bytes;
    const auto message = hn::Set(d, uint32_t{step} << 16);
    const auto far = hn::Set(d, codec::wire::kFarFaint);
    const auto faint = hn::Set(d, codec::wire::kFaintWidth);
    for (int64_t i = 0; i < kGrainBlocks; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto header = hn::PromoteTo(d, hn::LoadU(d_bytes, headers + i));
      const auto lower = hn::And(header, hn::Set(d, 15U));
      const auto upper = hn::ShiftRight<4>(header);
      const auto more = hn::IfThenElseZero(hn::Eq(lower, far), hn::Set(d, codec::wire::kHeaderSteps));
      const auto of_faint = hn::ShiftLeft<codec::wire::kFaintShift>(hn::Add(upper, more));
      const auto of_others = hn::ShiftLeft<codec::wire::kFractionShift>(upper);
      const auto distance = hn::IfThenElse(hn::Gt(lower, faint), of_others, of_faint);
      body(i, hn::BitCast(BlockFloats(), hn::Sub(hn::Max(message, distance), distance)));  // Not below 0.
    }
  }
};

// What elements of a grain's blocks are multiplied with to become codes.
struct GrainInverses {
  alignas(64) float at[kGrainBlocks];

  HWY_INLINE GrainInverses(uint16_t step, const uint8_t* headers) {
    const BlockFloats d;
    GrainSteps::for_each_vector(step, headers,
                                [&](int64_t i, auto steps) { hn::Store(hn::Div(hn::Set(d, 1.0F), steps), d, at + i); });
  }
};

// Headers of n elements of a grain as those of a whole one, as vectors are read.
struct WholeHeaders {
  uint8_t at[kGrainBlocks] = {};

  HWY_INLINE WholeHeaders(const uint8_t* headers, int64_t n) {
    std::memcpy(at, headers, static_cast<size_t>(codec::wire::blocks_of(n)));
  }
};

// Kernels write two planes' bytes behind a block's first word, and read as many.
constexpr int64_t kReach = 2 * kPlanesBytes;

// Writes the words of whole blocks, and from a block on that near the grain's end not beyond it.
template <bool kFetchesAhead, class... Random>
HWY_INLINE void encode_blocks(const TileSource& source, int64_t n, uint16_t step, const VariableGrain& grain,
                              Random... random) {
  const float* const x = source.x;
  const BitPlanes planes;
  const GrainInverses inverses(step, grain.headers);
  uint8_t* to = grain.begin;
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = codec::wire::width_of_header(grain.headers[i / kVariableBlock]);
    const float inverse = inverses.at[i / kVariableBlock];
    if constexpr (kFetchesAhead) {
      prefetch(source.upcoming + i, 0, kVariableBlock * static_cast<int64_t>(sizeof(float)));
    }
    if (HWY_LIKELY(grain.end - to >= kReach)) {
      encode_block(planes, x + i, inverse, width, to, random + i...);
    } else {  // What lies behind is another thread's, or nobody's.
      alignas(64) uint8_t block[kReach];
      encode_block(planes, x + i, inverse, width, block, random + i...);
      std::memcpy(to, block, width * kWordBytes);
    }
    to += width * kWordBytes;
  }
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

// The words of a grain's blocks, from which all that kernels read can be read.
template <class Sink>
HWY_INLINE void decode_blocks(const GrainWidths& widths, const GrainSteps& steps, const uint8_t* words, int64_t n,
                              float* out) {
  alignas(64) static constexpr uint8_t kZeros[kReach] = {};
  const BitPlanes planes;
  for (int64_t k = 0; k < n / kVariableBlock; ++k) {
    const uint32_t width = widths.at[k];
    decode_words<Sink>(planes, width == 0 ? kZeros : words, width, steps.at[k], out + k * kVariableBlock);
    words += width * kWordBytes;
  }
}

template <class Sink>
HWY_NOINLINE void decode_grain(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  const WholeHeaders headers(message.headers + block, n);
  const GrainWidths widths(headers.at);
  const GrainSteps steps(message.step, headers.at);
  const int64_t bytes = bytes_of_grain(headers.at);
  if (HWY_LIKELY(n == kTile && begin + bytes + kReach <= message.code_bytes)) {
    return decode_blocks<Sink>(widths, steps, message.codes + begin, kTile, out);
  }
  alignas(64) float values[kTile];
  if (begin + bytes > message.code_bytes) {
    std::fill_n(values, n, codec::float_of_bits(codec::kQuietNanBits));
  } else {  // At the message's end.
    alignas(64) uint8_t copied[kGrainBlocks * codec::wire::kMostWidth * kWordBytes + kReach];
    std::memcpy(copied, message.codes + begin, static_cast<size_t>(bytes));
    decode_blocks<Assign>(widths, steps, copied, codec::wire::blocks_of(n) * kVariableBlock, values);
  }
  put_all<Sink>(values, n, out);
}

#endif  // HWY_TARGET == HWY_SCALAR

// What largest_of_grain makes of quotients of these sums: as they grow with the sums, those of the largest.
HWY_INLINE void largest_quotients(const float* sums, int64_t n, const Quotient& quotient, uint32_t* largest) {
  const hn::CappedTag<float, 1> d;
  largest_of_grain({sums, nullptr}, n, largest);
  for (int64_t i = 0; i < codec::wire::blocks_of(n); ++i) {
    largest[i] = codec::float_bits(hn::GetLane(quotient.of(d, hn::Set(d, codec::float_of_bits(largest[i])))));
  }
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_

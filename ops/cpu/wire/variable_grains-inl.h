// Grains of a variable format (ops/codec/variable_width.h): their blocks' widths, and their codes in a message.
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

using codec::wire::GroupSize;
using codec::wire::kFaintWidth;
using codec::wire::kVariableGroup;
using codec::wire::VariableMessage;

constexpr int64_t kGrainNibbles = kGrainBlocks / 2;  // Bytes.

// Where a grain's codes go: from its first byte to behind its last.
struct VariableGrain {
  const uint8_t* nibbles;
  const uint32_t* largest;
  uint8_t* begin;
  const uint8_t* end;
};

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec.

HWY_INLINE void largest_of_grain(const float* x, int64_t n, uint32_t* largest) {
  for (int64_t i = 0; i * kVariableBlock < n; ++i) {
    largest[i] = codec::wire::largest_of_block(x, n, i);
  }
}

int64_t bytes_of_widths(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  int64_t sum = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    sum += codec::wire::bytes_of_width(codes.width(largest[i]));
  }
  return sum;
}

HWY_INLINE void widths_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* nibbles) {
  const auto nibble = [&](int64_t i) { return codec::wire::nibble_of_width(codes.width(largest[i])); };
  for (int64_t i = 0; i < kGrainNibbles; ++i) {
    nibbles[i] = static_cast<uint8_t>(nibble(2 * i) | nibble(2 * i + 1) << 4);
  }
}

HWY_INLINE GroupSize size_of_grain(const uint8_t* nibbles) { return GroupSize::of(nibbles, 0, kVariableGroup); }

void encode_grain(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                  const VariableGrain& grain) {
  codec::wire::encode_variable_group(x, n, codes, rounding, grain.nibbles, 0, grain.begin);
}

template <class Sink>
void decode_grain(const VariableMessage& message, int64_t block, int64_t begin, int64_t n, float* out) {
  float values[kVariableGroup];
  codec::wire::decode_variable_group(message, block, begin, n, values);
  put_all<Sink>(values, n, out);
}

#else

HWY_INLINE void largest_of_grain(const float* x, int64_t n, uint32_t* largest) {
  const int64_t blocks = n / kVariableBlock;
  find_largest<kVariableBlock>({x, nullptr}, blocks, reinterpret_cast<int32_t*>(largest));
  if (n % kVariableBlock != 0) {
    largest[blocks] = codec::wire::largest_of_block(x, n, blocks);
  }
}

// What StepCodes finds out of the largest magnitudes of blocks, as float32's bits.
template <class D>
class KindLanes {
  using Bits = hn::Vec<hn::RebindToSigned<D> >;
  static constexpr hn::RebindToSigned<D> d_int_{};

 public:
  HWY_INLINE KindLanes(D d, const StepCodes& codes)
      : inverse_(hn::Set(d, codes.inverse)), stochastic_(codes.stochastic) {
    const uint32_t least = (codes.least_own_scale() << codec::wire::kOwnScaleShift) - codes.own_scale_carry();
    below_scales_ = hn::Set(d_int_, static_cast<int32_t>(least - 1));
  }

  HWY_INLINE Bits load(D /*d*/, const uint32_t* largest) const {
    return hn::LoadU(d_int_, reinterpret_cast<const int32_t*>(largest));
  }

  // The largest codes, as float32's bits.
  HWY_INLINE Bits code_bits(D d, Bits bits) const {
    const auto y = hn::Mul(hn::BitCast(d, bits), inverse_);
    const auto rounder = hn::Set(d, 0x1p23F);
    return hn::BitCast(d_int_, stochastic_ ? hn::Ceil(y) : hn::Sub(hn::Add(y, rounder), rounder));
  }

  HWY_INLINE auto has_scale(D /*d*/, Bits bits) const { return hn::Gt(bits, below_scales_); }

  // 1 for faint blocks, else the digits of the code.
  HWY_INLINE Bits nibbles(D d, Bits bits) const {
    const auto digits = hn::Sub(hn::ShiftRight<23>(code_bits(d, bits)), hn::Set(d_int_, 126));
    const auto one = hn::Set(d_int_, 1);
    return hn::IfThenElse(hn::Gt(digits, one), digits, hn::IfThenElseZero(has_scale(d, bits), one));
  }

 private:
  hn::Vec<D> inverse_;
  Bits below_scales_;
  bool stochastic_;
};

// 4 bytes for each digit and the sign, if there are any; for a faint block one more than for the two words that it has.
// More digits than it has take more bytes, fewer take less; what has no scale has no digits.
int64_t bytes_of_widths(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  constexpr int64_t kAtOnce = int64_t{1} << 20;  // A lane holds the sum of so many.
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto faint = hn::Set(d_int, static_cast<int32_t>(codec::wire::bytes_of_width(kFaintWidth)));
  const KindLanes<decltype(d)> kinds(d, codes);
  const auto bytes_at = [&](int64_t i) {
    const auto bits = kinds.load(d, largest + i);
    const auto words = hn::Sub(hn::ShiftRight<23>(kinds.code_bits(d, bits)), hn::Set(d_int, 125));
    return hn::IfThenElseZero(kinds.has_scale(d, bits), hn::Max(hn::ShiftLeft<2>(words), faint));
  };
  int64_t sum = 0;
  for (int64_t begin = 0; begin < blocks; begin += kAtOnce) {
    const int64_t end = std::min(begin + kAtOnce, blocks);
    auto sums0 = hn::Zero(d_int);
    auto sums1 = hn::Zero(d_int);
    for (int64_t i = begin; i < end; i += 2 * lanes) {  // Zeros are behind the last one.
      sums0 = hn::Add(sums0, bytes_at(i));
      sums1 = hn::Add(sums1, bytes_at(i + lanes));
    }
    sum += hn::GetLane(hn::SumOfLanes(d_int, hn::Add(sums0, sums1)));
  }
  return sum;
}

HWY_INLINE void widths_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* nibbles) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint8_t, decltype(d)> d_bytes;
  const KindLanes<decltype(d)> kinds(d, codes);
  alignas(64) uint8_t bytes[kGrainBlocks];
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kGrainBlocks; i += lanes) {
    hn::StoreU(hn::DemoteTo(d_bytes, kinds.nibbles(d, kinds.load(d, largest + i))), d_bytes, bytes + i);
  }
  pack<4>(bytes, nibbles);
}

// The widths are the nibbles, and one more for those that are not 0.
HWY_INLINE GroupSize size_of_grain(const uint8_t* nibbles) {
  const Bytes16 d;
  const hn::Repartition<uint16_t, decltype(d)> d_pairs;
  const hn::Repartition<uint64_t, decltype(d)> d_sums;
  const auto one = hn::Set(d, uint8_t{1});
  const auto both = hn::LoadU(d, nibbles);
  const auto mask = hn::Set(d, uint8_t{15});
  const auto low = hn::And(both, mask);
  const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d_pairs, both))), mask);
  const auto widths = hn::Add(hn::Add(low, hn::Min(low, one)), hn::Add(high, hn::Min(high, one)));
  const auto ones = hn::Add(hn::IfThenElseZero(hn::Eq(low, one), one), hn::IfThenElseZero(hn::Eq(high, one), one));
  return {static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d_sums, hn::SumsOf8(widths)))),
          static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d_sums, hn::SumsOf8(ones))))};
}

static_assert(kGrainNibbles == 16, "a grain's widths are a vector");

// Kernels write two planes' bytes behind a block's first word, and read as many.
constexpr int64_t kReach = 2 * kPlanesBytes;

// What StepCodes::faint has as the inverse of an own scale.
template <class D>
HWY_INLINE hn::Vec<D> inverse_lanes(D d, hn::Vec<D> scale) {
  const hn::RebindToSigned<D> d_int;
  const auto one = hn::Set(d, 1.0F);
  const auto inverse = hn::Div(one, scale);
  const auto is_too_great = hn::RebindMask(d_int, hn::Gt(hn::Mul(scale, inverse), one));
  const auto below = hn::Sub(hn::BitCast(d_int, inverse), hn::IfThenElseZero(is_too_great, hn::Set(d_int, 1)));
  return hn::BitCast(d, below);
}

// What elements of a grain's blocks are multiplied with to become codes, and how far below the step a scale of their
// own is (StepCodes); if there is none that is any number.
struct GrainScales {
  alignas(64) float inverses[kGrainBlocks];
  alignas(64) uint32_t distances[kGrainBlocks];

  HWY_INLINE GrainScales(const uint32_t* largest, const StepCodes& codes) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> d_int;
    const hn::RebindToUnsigned<decltype(d)> d_bits;
    constexpr int kShift = codec::wire::kOwnScaleShift;
    const auto of_step = hn::Set(d_int, static_cast<int32_t>(codes.first_bits()));
    const auto itself = hn::Set(d_int, static_cast<int32_t>(codec::wire::kStepItself));
    const auto carry = hn::Set(d_bits, codes.own_scale_carry());
    const auto inverse = hn::Set(d, codes.inverse);
    const KindLanes<decltype(d)> kinds(d, codes);
    for (int64_t i = 0; i < kGrainBlocks; i += static_cast<int64_t>(hn::Lanes(d))) {
      const auto bits = kinds.load(d, largest + i);
      const auto own = hn::BitCast(d_int, hn::ShiftRight<kShift>(hn::Add(hn::BitCast(d_bits, bits), carry)));
      const auto is_above = hn::Gt(own, of_step);
      const auto own_inverse = inverse_lanes(d, hn::BitCast(d, hn::ShiftLeft<kShift>(own)));
      const auto is_faint = hn::RebindMask(d, hn::Eq(kinds.nibbles(d, bits), hn::Set(d_int, 1)));
      const auto of_faint = hn::IfThenElse(hn::RebindMask(d, is_above), inverse, own_inverse);
      hn::Store(hn::IfThenElse(is_faint, of_faint, inverse), d, inverses + i);
      const auto distance = hn::IfThenElse(is_above, itself, hn::Sub(of_step, own));
      hn::Store(hn::BitCast(d_bits, distance), d_bits, distances + i);
    }
  }
};

// Writes the words of whole blocks, and from a block on that near the grain's end not beyond it.
template <class... Random>
HWY_INLINE void encode_blocks(const float* x, int64_t n, const StepCodes& step, const VariableGrain& grain,
                              Random... random) {
  const BitPlanes planes;
  const GrainScales scales(grain.largest, step);
  uint8_t distances[kGrainBlocks];
  int64_t faint = 0;
  uint8_t* to = grain.begin;
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = width_at(grain.nibbles, i / kVariableBlock);
    const float inverse = scales.inverses[i / kVariableBlock];
    distances[faint] = static_cast<uint8_t>(scales.distances[i / kVariableBlock]);
    faint += width == kFaintWidth ? 1 : 0;
    if (HWY_LIKELY(grain.end - to >= kReach)) {
      encode_block(planes, x + i, inverse, width, to, random + i...);
    } else {  // What lies behind is another thread's, or nobody's.
      alignas(64) uint8_t block[kReach];
      encode_block(planes, x + i, inverse, width, block, random + i...);
      std::memcpy(to, block, width * kWordBytes);
    }
    to += width * kWordBytes;
  }
  std::memcpy(to, distances, static_cast<size_t>(faint));
}

HWY_INLINE void encode_blocks(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                              const VariableGrain& grain) {
  if (!rounding.stochastic) {
    return encode_blocks(x, n, codes, grain);
  }
  RandomWords<kTile> random;
  encode_blocks(x, n, codes, grain, random.fill(rounding, n));
}

HWY_NOINLINE void encode_grain(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                               const VariableGrain& grain) {
  const int64_t whole = n / kVariableBlock * kVariableBlock;
  if (whole == n) {
    return encode_blocks(x, n, codes, rounding, grain);
  }
  alignas(64) float padded[kTile];
  std::copy_n(x, n, padded);
  std::fill_n(padded + n, whole + kVariableBlock - n, 0.0F);
  encode_blocks(padded, whole + kVariableBlock, codes, rounding, grain);
}

// The words of a grain's blocks, and the steps of faint ones.
class BlockReader {
 public:
  HWY_INLINE BlockReader(const VariableMessage& message, const GroupSize& size, int64_t begin)
      : step_{message.step, 0, false}, words_(message.codes + begin), end_(message.codes + message.code_bytes) {
    std::memcpy(distances_, words_ + size.words * kWordBytes, static_cast<size_t>(size.faint));
  }

  // The next block to out[0..n).
  template <class Sink>
  HWY_INLINE void decode(const BitPlanes& planes, uint32_t width, int64_t n, float* out) {
    alignas(64) static constexpr uint8_t kZeros[kReach] = {};
    const uint8_t* const words = width == 0 ? kZeros : words_;
    const float step = step_of_next(width);
    if (HWY_LIKELY(n >= kVariableBlock && (end_ - words_ >= kReach || width == 0))) {
      decode_words<Sink>(planes, words, width, step, out);
    } else {
      decode_last<Sink>(planes, words, width, step, n, out);
    }
    words_ += width * kWordBytes;
  }

 private:
  // Without a branch, which could not be foreseen.
  HWY_INLINE float step_of_next(uint32_t width) {
    const uint32_t is_faint = width == kFaintWidth ? 1 : 0;
    const uint32_t own = codec::float_bits(step_.own_step(distances_[next_]));
    next_ += is_faint;
    const uint32_t all = codec::float_bits(step_.step);
    return codec::float_of_bits(all ^ ((all ^ own) & (0U - is_faint)));
  }

  // Near the message's end, or less than a block.
  template <class Sink>
  static HWY_NOINLINE void decode_last(const BitPlanes& planes, const uint8_t* words, uint32_t width, float step,
                                       int64_t n, float* out) {
    alignas(64) float values[kVariableBlock];
    alignas(64) uint8_t block[kReach] = {};
    std::memcpy(block, words, width * kWordBytes);
    decode_words<Assign>(planes, block, width, step, values);
    put_all<Sink>(values, std::min(kVariableBlock, n), out);
  }

  const StepCodes step_;
  const uint8_t* words_;
  uint8_t distances_[kGrainBlocks + 1] = {};  // Of faint blocks.
  uint32_t next_ = 0;
  const uint8_t* const end_;
};

template <class Sink>
HWY_NOINLINE void decode_grain(const VariableMessage& any_message, int64_t block, int64_t begin, int64_t n,
                               float* out) {
  const VariableMessage message = any_message;  // What is written to `out` is not in it.
  const BitPlanes planes;
  const bool is_whole = n == kTile;
  const GroupSize size = is_whole ? size_of_grain(message.widths + block / 2) : GroupSize::of(message.widths, block, n);
  if (HWY_UNLIKELY(begin + size.bytes() > message.code_bytes)) {
    alignas(64) float nan[kTile];
    std::fill_n(nan, n, codec::float_of_bits(codec::kQuietNanBits));
    return put_all<Sink>(nan, n, out);
  }
  BlockReader reader(message, size, begin);
  if (HWY_LIKELY(is_whole)) {
    for (int64_t i = 0; i < kTile; i += 2 * kVariableBlock, block += 2) {
      const uint32_t pair = message.widths[block / 2];
      reader.decode<Sink>(planes, codec::wire::width_of_nibble(pair & 15U), kVariableBlock, out + i);
      reader.decode<Sink>(planes, codec::wire::width_of_nibble(pair >> 4), kVariableBlock, out + i + kVariableBlock);
    }
    return;
  }
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    reader.decode<Sink>(planes, width_at(message.widths, block++), n - i, out + i);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_VARIABLE_GRAINS_INL_H_

#include "ops/cpu/wire/variable_kernels.h"

// For GFNI (bit_planes-inl.h).
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/wire/variable_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "ops/cpu/wire/variable_lanes-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

#if NARROWCAST_HAS_GFNI && (HWY_TARGETS & HWY_AVX3)
namespace narrowcast::cpu::N_AVX3 {
const VariableKernels* variable_kernels();
}
#endif

NARROWCAST_BEFORE_PLANES;
namespace narrowcast::cpu::HWY_NAMESPACE {

using codec::wire::VariableMessage;

constexpr int64_t kGrainNibbles = kGrainBlocks / 2;  // Bytes.

// Calls body(first element, elements) for each grain of an array of n.
template <class Body>
HWY_INLINE void for_each_grain(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kTile) {
    body(i, std::min(kTile, n - i));
  }
}

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec.

HWY_INLINE void largest_of_grain(const float* x, int64_t n, uint32_t* largest) {
  for (int64_t i = 0; i * kVariableBlock < n; ++i) {
    largest[i] = codec::wire::largest_of_block(x, n, i);
  }
}

int64_t words(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  int64_t sum = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    sum += codes.width(codec::float_of_bits(largest[i]));
  }
  return sum;
}

HWY_INLINE void widths_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* nibbles) {
  const auto nibble = [&](int64_t i) {
    return codec::wire::nibble_of_width(codes.width(codec::float_of_bits(largest[i])));
  };
  for (int64_t i = 0; i < kGrainNibbles; ++i) {
    nibbles[i] = static_cast<uint8_t>(nibble(2 * i) | nibble(2 * i + 1) << 4);
  }
}

HWY_INLINE int64_t words_of_grain(const uint8_t* nibbles) {
  int64_t sum = 0;
  for (int64_t i = 0; i < kGrainBlocks; ++i) {
    sum += width_at(nibbles, i);
  }
  return sum;
}

uint8_t* encode_grain(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                      const VariableWords& words) {
  uint8_t* to = words.begin;
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = width_at(words.nibbles, i / kVariableBlock);
    codec::wire::encode_variable_block(x + i, std::min(kVariableBlock, n - i), width, codes, rounding.at(i), to);
    to += width * kWordBytes;
  }
  return to;
}

template <class Sink>
void decode_grain(const VariableMessage& message, int64_t block, int64_t word, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    float values[kVariableBlock];
    const int64_t rest = std::min(kVariableBlock, n - i);
    codec::wire::decode_variable_block(message, block, word, rest, values);
    put_all<Sink>(values, rest, out + i);
    word += width_at(message.widths, block++);
  }
}

#else

HWY_INLINE void largest_of_grain(const float* x, int64_t n, uint32_t* largest) {
  const int64_t blocks = n / kVariableBlock;
  find_largest<kVariableBlock>({x, nullptr}, blocks, reinterpret_cast<int32_t*>(largest));
  if (n % kVariableBlock != 0) {
    largest[blocks] = codec::wire::largest_of_block(x, n, blocks);
  }
}

// The widths of blocks with these largest magnitudes.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> width_lanes(D d, const uint32_t* largest, const StepCodes& codes) {
  const hn::RebindToSigned<D> d_int;
  const auto magnitude = hn::LoadU(d, reinterpret_cast<const float*>(largest));
  const auto y = hn::Mul(magnitude, hn::Set(d, codes.inverse));
  const auto rounder = hn::Set(d, 0x1p23F);
  const auto code = codes.stochastic ? hn::Ceil(y) : hn::Sub(hn::Add(y, rounder), rounder);
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(d_int, code));
  return hn::Max(hn::Sub(exponent, hn::Set(d_int, 125)), hn::Zero(d_int));
}

int64_t words(const uint32_t* largest, int64_t blocks, const StepCodes& codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  constexpr int64_t kAtOnce = int64_t{1} << 20;  // A lane holds the sum of so many widths.
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t sum = 0;
  for (int64_t begin = 0; begin < blocks; begin += kAtOnce) {
    const int64_t end = std::min(begin + kAtOnce, blocks);
    auto sums0 = hn::Zero(d_int);
    auto sums1 = hn::Zero(d_int);
    for (int64_t i = begin; i < end; i += 2 * lanes) {  // Zeros are behind the last one.
      sums0 = hn::Add(sums0, width_lanes(d, largest + i, codes));
      sums1 = hn::Add(sums1, width_lanes(d, largest + i + lanes, codes));
    }
    sum += hn::GetLane(hn::SumOfLanes(d_int, hn::Add(sums0, sums1)));
  }
  return sum;
}

HWY_INLINE void widths_of_grain(const uint32_t* largest, const StepCodes& codes, uint8_t* nibbles) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d_int;
  const hn::Rebind<uint8_t, decltype(d)> d_bytes;
  alignas(64) uint8_t bytes[kGrainBlocks];
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kGrainBlocks; i += lanes) {
    const auto width = width_lanes(d, largest + i, codes);
    const auto nibble = hn::Max(hn::Sub(width, hn::Set(d_int, 1)), hn::Zero(d_int));
    hn::StoreU(hn::DemoteTo(d_bytes, nibble), d_bytes, bytes + i);
  }
  pack<4>(bytes, nibbles);
}

// The widths are the nibbles, and one more for those that are not 0.
HWY_INLINE int64_t words_of_grain(const uint8_t* nibbles) {
  const Bytes16 d;
  const hn::Repartition<uint16_t, decltype(d)> d_pairs;
  const hn::Repartition<uint64_t, decltype(d)> d_sums;
  const auto one = hn::Set(d, uint8_t{1});
  const auto both = hn::LoadU(d, nibbles);
  const auto mask = hn::Set(d, uint8_t{15});
  const auto low = hn::And(both, mask);
  const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d_pairs, both))), mask);
  const auto widths = hn::Add(hn::Add(low, hn::Min(low, one)), hn::Add(high, hn::Min(high, one)));
  return static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d_sums, hn::SumsOf8(widths))));
}

static_assert(kGrainNibbles == 16, "a grain's widths are a vector");

// Kernels write two planes' bytes behind a block's first word, and read as many.
constexpr int64_t kReach = 2 * kPlanesBytes;

// Return where the words end.
template <class... Random>
HWY_INLINE uint8_t* encode_blocks(const float* x, int64_t n, const StepCodes& codes, const VariableWords& words,
                                  Random... random) {
  const BitPlanes planes;
  uint8_t* to = words.begin;
  for (int64_t i = 0; i < n; i += kVariableBlock) {
    const uint32_t width = width_at(words.nibbles, i / kVariableBlock);
    if (HWY_LIKELY(words.end - to >= kReach)) {
      encode_block(planes, x + i, codes.inverse, width, to, random + i...);
    } else {  // What lies behind is another thread's, or nobody's.
      alignas(64) uint8_t block[kReach];
      encode_block(planes, x + i, codes.inverse, width, block, random + i...);
      std::memcpy(to, block, width * kWordBytes);
    }
    to += width * kWordBytes;
  }
  return to;
}

HWY_INLINE uint8_t* encode_blocks(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                                  const VariableWords& words) {
  if (!rounding.stochastic) {
    return encode_blocks(x, n, codes, words);
  }
  RandomWords<kTile> random;
  return encode_blocks(x, n, codes, words, random.fill(rounding, n));
}

HWY_NOINLINE uint8_t* encode_grain(const float* x, int64_t n, const StepCodes& codes, const Rounding& rounding,
                                   const VariableWords& words) {
  const int64_t whole = n / kVariableBlock * kVariableBlock;
  if (whole == n) {
    return encode_blocks(x, n, codes, rounding, words);
  }
  alignas(64) float padded[kTile];
  std::copy_n(x, n, padded);
  std::fill_n(padded + n, whole + kVariableBlock - n, 0.0F);
  return encode_blocks(padded, whole + kVariableBlock, codes, rounding, words);
}

// A block near the message's end, or beyond it.
template <class Sink>
HWY_NOINLINE void decode_last_block(const VariableMessage& message, uint32_t width, int64_t word, int64_t n,
                                    float* out) {
  alignas(64) float values[kVariableBlock];
  if (word + width > message.words) {
    std::fill_n(values, kVariableBlock, codec::float_of_bits(codec::kQuietNanBits));
  } else {
    alignas(64) uint8_t block[kReach] = {};
    std::memcpy(block, message.codes + word * kWordBytes, width * kWordBytes);
    decode_words<Assign>(BitPlanes(), block, width, message.step, values);
  }
  put_all<Sink>(values, n, out);
}

template <class Sink>
HWY_NOINLINE void decode_grain(const VariableMessage& any_message, int64_t block, int64_t word, int64_t n, float* out) {
  const VariableMessage message = any_message;  // What is written to `out` is not in it.
  const BitPlanes planes;
  alignas(64) static constexpr uint8_t kZeros[kReach] = {};
  const auto words_of = [&](uint32_t width) { return width == 0 ? kZeros : message.codes + word * kWordBytes; };
  if (HWY_LIKELY(n == kTile &&
                 word + words_of_grain(message.widths + block / 2) + kReach / kWordBytes <= message.words)) {
    for (int64_t i = 0; i < kTile; i += 2 * kVariableBlock, block += 2) {
      const uint32_t pair = message.widths[block / 2];
      const uint32_t width = codec::wire::width_of_nibble(pair & 15U);
      decode_words<Sink>(planes, words_of(width), width, message.step, out + i);
      word += width;
      const uint32_t next = codec::wire::width_of_nibble(pair >> 4);
      decode_words<Sink>(planes, words_of(next), next, message.step, out + i + kVariableBlock);
      word += next;
    }
    return;
  }
  for (int64_t i = 0; i < n; i += kVariableBlock, ++block) {
    const uint32_t width = width_at(message.widths, block);
    if (HWY_LIKELY(word + kReach / kWordBytes <= message.words && n - i >= kVariableBlock)) {
      decode_words<Sink>(planes, words_of(width), width, message.step, out + i);
    } else {
      decode_last_block<Sink>(message, width, word, std::min(kVariableBlock, n - i), out + i);
    }
    word += width;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

template <class T>
void largest(WireInput<T> input, uint32_t* largest) {
  alignas(64) float tile[kTile];
  for_each_grain(input.n, [&](int64_t begin, int64_t n) {
    largest_of_grain(source_of(input.x + begin, n, tile).x, n, largest + begin / kVariableBlock);
  });
}

void widths(const uint32_t* largest, int64_t blocks, const StepCodes& codes, uint8_t* nibbles) {
  for (int64_t i = 0; i < blocks; i += kGrainBlocks) {
    uint8_t of_grain[kGrainNibbles];
    widths_of_grain(largest + i, codes, of_grain);
    std::memcpy(nibbles + i / 2, of_grain, static_cast<size_t>(std::min(kGrainNibbles, (blocks - i + 1) / 2)));
  }
}

void offsets(const uint8_t* nibbles, int64_t blocks, int64_t* word_of_grain) {
  int64_t word = 0;
  for (int64_t i = 0; i < blocks; i += kGrainBlocks) {
    *word_of_grain++ = word;
    if (blocks - i >= kGrainBlocks) {
      word += words_of_grain(nibbles + i / 2);
    } else {
      for (int64_t block = i; block < blocks; ++block) word += width_at(nibbles, block);
    }
  }
  *word_of_grain = word;
}

template <class T>
void codes(WireInput<T> input, const StepCodes& codes, const Rounding& rounding, const VariableWords& words) {
  alignas(64) float tile[kTile];
  VariableWords rest = words;
  for_each_grain(input.n, [&](int64_t begin, int64_t n) {
    rest.begin = encode_grain(source_of(input.x + begin, n, tile).x, n, codes, rounding.at(begin), rest);
    rest.nibbles += kGrainNibbles;
  });
}

template <class Sink>
HWY_INLINE void decode_to(const VariableSource& source, int64_t first, int64_t n, float* out) {
  for_each_grain(n, [&](int64_t begin, int64_t part) {
    const int64_t grain = (first + begin) / kTile;
    decode_grain<Sink>(source.message, grain * kGrainBlocks, source.word_of_grain[grain], part, out + begin);
  });
}

void decode(const VariableSource& source, int64_t first, int64_t n, float* out) {
  if (is_streamed(out, n)) {
    decode_to<Stream>(source, first, n, out);
    hwy::FlushStream();
  } else {
    decode_to<Assign>(source, first, n, out);
  }
}

template <class Sink>
HWY_INLINE void take_part(const VariableParts& parts, int64_t r, int64_t begin, int64_t n, float* out) {
  if (parts.messages[r] == nullptr) {
    put_all<Sink>(parts.own + begin, n, out);
  } else {
    decode_to<Sink>(*parts.messages[r], parts.first + begin, n, out);
  }
}

void average(const VariableParts& parts, float* mean) {
  const bool is_long = is_streamed(mean, parts.n);
  alignas(64) float tile[kTile] = {};
  for_each_grain(parts.n, [&](int64_t begin, int64_t n) {
    take_part<Assign>(parts, 0, begin, n, tile);
    for (int64_t r = 1; r < parts.ranks; ++r) {
      take_part<Accumulate>(parts, r, begin, n, tile);
    }
    divide(tile, n, parts.ranks);
    is_long ? put_all<Stream>(tile, n, mean + begin) : put_all<Assign>(tile, n, mean + begin);
  });
  hwy::FlushStream();
}

const VariableKernels* variable_kernels() {
  static constexpr VariableKernels kKernels{
      {&largest<float>, &largest<double>, &largest<c10::BFloat16>, &largest<c10::Half>},
      {&codes<float>, &codes<double>, &codes<c10::BFloat16>, &codes<c10::Half>},
      &words,
      &widths,
      &offsets,
      &decode,
      &average};
#if NARROWCAST_HAS_GFNI && (HWY_TARGETS & HWY_AVX3)
  if (!__builtin_cpu_supports("gfni")) return N_AVX3::variable_kernels();
#endif
  return &kKernels;
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {
namespace {

HWY_EXPORT(variable_kernels);

const VariableKernels& kernels() { return *HWY_DYNAMIC_DISPATCH(variable_kernels)(); }

}  // namespace

template <class T>
void variable_largest(WireInput<T> input, uint32_t* largest) {
  std::get<VariableLargest<T>>(kernels().largest)(input, largest);
}

int64_t variable_words(const uint32_t* largest, int64_t blocks, const codec::wire::StepCodes& codes) {
  return kernels().words(largest, blocks, codes);
}

void variable_widths(const uint32_t* largest, int64_t blocks, const codec::wire::StepCodes& codes, uint8_t* nibbles) {
  kernels().widths(largest, blocks, codes, nibbles);
}

void variable_offsets(const uint8_t* nibbles, int64_t blocks, int64_t* word_of_grain) {
  kernels().offsets(nibbles, blocks, word_of_grain);
}

template <class T>
void variable_codes(WireInput<T> input, const codec::wire::StepCodes& codes, const Rounding& rounding,
                    const VariableWords& words) {
  std::get<VariableCodes<T>>(kernels().codes)(input, codes, rounding, words);
}

void variable_decode(const VariableSource& source, int64_t first, int64_t n, float* out) {
  kernels().decode(source, first, n, out);
}

void variable_average(const VariableParts& parts, float* mean) { kernels().average(parts, mean); }

#define NARROWCAST_INSTANTIATE(T)                             \
  template void variable_largest<T>(WireInput<T>, uint32_t*); \
  template void variable_codes<T>(WireInput<T>, const codec::wire::StepCodes&, const Rounding&, const VariableWords&);

NARROWCAST_INSTANTIATE(float)
NARROWCAST_INSTANTIATE(double)
NARROWCAST_INSTANTIATE(c10::BFloat16)
NARROWCAST_INSTANTIATE(c10::Half)

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

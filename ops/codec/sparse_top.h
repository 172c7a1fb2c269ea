// Messages of the largest elements of each block: their places, and 2 bits of value for each. All other elements decode
// to 0, so a sender needs error feedback. docs/reference/wire-format.md describes the bytes.
//
// - Places are an increasing sequence in Elias-Fano's code: a few low bits of each place, and the rest in unary as the
//   difference from the place before (P. Elias, "Efficient storage and retrieval by content and address of static
//   files", J. ACM 21 (1974)). Its size depends only on the numbers of elements and places.
// - A value is a sign and one of two levels of its block: the means of the magnitudes above and below their mean. This
//   is one step of Lloyd's method, and each level is the least-squares value for its elements.
//
// Bits of magnitudes and places alone decide which elements are kept, and levels are sums in one order. So all
// processors write the same bytes. Compile users with FMA contraction off.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/size_arithmetic.h"
#include "ops/codec/wire_scale.h"

namespace narrowcast::codec::wire {

inline constexpr int64_t kSparseBlock = 4096;     // Elements of a whole block; at most 2^16.
inline constexpr int64_t kLevelsBytes = 4;        // The two levels precede the bits of a block.
inline constexpr int kSparseCodeBits = 2;         // Bits of a value.
inline constexpr uint32_t kNegativeCode = 1;      // The bit of the sign.
inline constexpr uint32_t kLargeCode = 2;         // The bit of the larger level.
inline constexpr int64_t kMostKept = 256;         // Elements that a block may keep.
inline constexpr int64_t kMostSparseBytes = 320;  // The longest block.
inline constexpr uint16_t kGreatestLevel = 0x7F7F;
inline constexpr uint16_t kLeastLevel = kLeastScaleBits >> 16;  // Less is 0, as with scales.

// Elements that a block of n > 0 elements keeps. Integer: int64_t, or c10::SymInt.
template <class Integer>
NARROWCAST_HOST_DEVICE constexpr Integer kept_of_block(int per_mille, const Integer& n) {
  return greater<Integer>(n * per_mille / 1000, 1);
}

// Bits of a place that are written as they are: the whole part of log2(1000 / per_mille), with which Elias-Fano's code
// is shortest. At most 8, for put_bits and get_bits.
NARROWCAST_HOST_DEVICE constexpr int low_bits_of(int per_mille) {
  int bits = 0;
  while ((2 << bits) * per_mille <= 1000) {
    ++bits;
  }
  return bits;
}

// Bytes of a block of n > 0 elements.
template <class Integer>
NARROWCAST_HOST_DEVICE constexpr Integer sparse_block_bytes(int per_mille, const Integer& n) {
  const int low_bits = low_bits_of(per_mille);
  const Integer bits =
      kept_of_block<Integer>(per_mille, n) * (1 + low_bits + kSparseCodeBits) + (n - 1) / (1 << low_bits);
  return (bits + 7) / 8 + kLevelsBytes;
}

// Bytes of a message of n elements.
template <class Integer>
NARROWCAST_HOST_DEVICE constexpr Integer sparse_bytes(int per_mille, const Integer& n) {
  const Integer rest = n % kSparseBlock;
  return n / kSparseBlock * sparse_block_bytes<int64_t>(per_mille, kSparseBlock) +
         smaller<Integer>(rest, 1) * sparse_block_bytes<Integer>(per_mille, rest);
}

// The sections of a block's bits, which follow its levels. Bit k is bit k mod 8 of byte k div 8.
struct SparseLayout {
  int64_t n;
  int64_t kept;
  int low_bits;
  int64_t lows;   // The first bit of the low bits of the places, behind the unary ones.
  int64_t codes;  // The first bit of the values.
  int64_t bytes;  // All bytes of the block, with its levels.
};

// The layout of a block of n > 0 elements.
NARROWCAST_HOST_DEVICE inline SparseLayout sparse_layout(int per_mille, int64_t n) {
  SparseLayout layout{};
  layout.n = n;
  layout.kept = kept_of_block<int64_t>(per_mille, n);
  layout.low_bits = low_bits_of(per_mille);
  layout.lows = layout.kept + ((n - 1) >> layout.low_bits);
  layout.codes = layout.lows + layout.kept * layout.low_bits;
  layout.bytes = sparse_block_bytes<int64_t>(per_mille, n);
  return layout;
}

// Writes a value below 2^8 from bit `first` on, where the bits are 0.
NARROWCAST_HOST_DEVICE inline void put_bits(uint8_t* bytes, int64_t first, uint32_t value) {
  const uint32_t shifted = value << (first % 8);
  bytes[first / 8] = static_cast<uint8_t>(bytes[first / 8] | shifted);
  if (shifted > 0xFFU) {
    bytes[first / 8 + 1] = static_cast<uint8_t>(bytes[first / 8 + 1] | shifted >> 8);
  }
}

// `count` <= 8 bits from bit `first` on.
NARROWCAST_HOST_DEVICE inline uint32_t get_bits(const uint8_t* bytes, int64_t first, int count) {
  uint32_t word = bytes[first / 8];
  if (first % 8 + count > 8) {
    word |= uint32_t{bytes[first / 8 + 1]} << 8;
  }
  return word >> (first % 8) & ((1U << count) - 1);
}

// The elements that a block keeps: all with magnitude bits above `least`, and the first `equal` of those with `least`.
struct SparseThreshold {
  uint32_t least;
  int64_t equal;
};

// The threshold of a block. `largest`: the bits of its largest magnitude, finite. count_from(bits) returns the number
// of elements with at least these magnitude bits. It is called up to 32 times: bisection, until the number is right.
NARROWCAST_CALLS_ANY_SIDE
template <class CountFrom>
NARROWCAST_HOST_DEVICE SparseThreshold sparse_threshold(uint32_t largest, const SparseLayout& layout,
                                                        const CountFrom& count_from) {
  uint32_t low = 0;  // count_from(low) >= kept, and count_from(high + 1) < kept.
  uint32_t high = largest;
  int64_t from_low = layout.n;
  while (low < high && from_low != layout.kept) {
    const uint32_t middle = low + (high - low + 1) / 2;
    const int64_t count = count_from(middle);
    if (count >= layout.kept) {
      low = middle;
      from_low = count;
    } else {
      high = middle - 1;
    }
  }
  return {low, from_low == layout.kept ? layout.kept : layout.kept - count_from(low + 1)};
}

NARROWCAST_HOST_DEVICE inline double magnitude_of(float x) { return float_of_bits(magnitude_bits(x)); }

// The levels of a block, bfloat16. A kept element has the larger one if its magnitude is above `mean`.
struct SparseLevels {
  uint16_t small;
  uint16_t large;
  double mean;

  NARROWCAST_HOST_DEVICE bool are_zero() const { return small == 0 && large == 0; }
  NARROWCAST_HOST_DEVICE bool are_nan() const { return (small & 0x7FFFU) > kInfBits >> 16; }

  NARROWCAST_HOST_DEVICE uint32_t code(float x) const {
    const uint32_t sign = float_bits(x) >> 31 != 0 ? kNegativeCode : 0;
    return sign | (magnitude_of(x) > mean ? kLargeCode : 0);
  }

  NARROWCAST_HOST_DEVICE float value(uint32_t code) const {
    const uint32_t magnitude = uint32_t{(code & kLargeCode) != 0 ? large : small} << 16;
    const bool is_negative = (code & kNegativeCode) != 0 && magnitude != 0;  // No -0, which sums would have to keep.
    return float_of_bits(magnitude ^ (is_negative ? kSignBit : 0));
  }
};

// The levels of a block that contains NaN or Inf.
NARROWCAST_HOST_DEVICE inline SparseLevels nan_levels() { return {kNanScale, kNanScale, 0}; }

// A level: rounded to float32, then to bfloat16, both to nearest, ties to even; never Inf.
NARROWCAST_HOST_DEVICE inline uint16_t level_of(double magnitude) {
  const uint32_t bits = float_bits(static_cast<float>(magnitude));
  const uint32_t level = (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
  return static_cast<uint16_t>(level > kGreatestLevel ? kGreatestLevel : level < kLeastLevel ? 0 : level);
}

// The levels of `kept` > 0 elements; kept_element(i) returns them in order of their places. Magnitudes are summed in
// float64, where no sum overflows and the mean of equal magnitudes is exact; so the lower class is never empty. The
// upper one is empty only if all magnitudes are equal, and then has the same level.
NARROWCAST_CALLS_ANY_SIDE
template <class KeptElement>
NARROWCAST_HOST_DEVICE SparseLevels sparse_levels(int64_t kept, const KeptElement& kept_element) {
  double sum = 0;
  for (int64_t i = 0; i < kept; ++i) {
    sum += magnitude_of(kept_element(i));
  }
  const double mean = sum / static_cast<double>(kept);
  double below = 0;
  double above = 0;
  int64_t count_above = 0;
  for (int64_t i = 0; i < kept; ++i) {
    const double magnitude = magnitude_of(kept_element(i));
    const bool is_above = magnitude > mean;
    count_above += is_above ? 1 : 0;
    above += is_above ? magnitude : 0;
    below += is_above ? 0 : magnitude;
  }
  const uint16_t small = level_of(below / static_cast<double>(kept - count_above));
  return {small, count_above == 0 ? small : level_of(above / static_cast<double>(count_above)), mean};
}

// Writes a block. place(i) returns the places of its kept elements, ascending, and code(i) their codes. If both levels
// are 0 or NaN, neither is called, and all bits are 0.
NARROWCAST_CALLS_ANY_SIDE
template <class Place, class Code>
NARROWCAST_HOST_DEVICE void write_sparse_block(const SparseLayout& layout, const SparseLevels& levels,
                                               const Place& place, const Code& code, uint8_t* bytes) {
  for (int64_t i = kLevelsBytes; i < layout.bytes; ++i) {
    bytes[i] = 0;
  }
  bytes[0] = static_cast<uint8_t>(levels.small);
  bytes[1] = static_cast<uint8_t>(levels.small >> 8);
  bytes[2] = static_cast<uint8_t>(levels.large);
  bytes[3] = static_cast<uint8_t>(levels.large >> 8);
  if (levels.are_zero() || levels.are_nan()) {
    return;
  }
  uint8_t* const bits = bytes + kLevelsBytes;
  for (int64_t i = 0; i < layout.kept; ++i) {
    const auto at = static_cast<uint32_t>(place(i));
    put_bits(bits, int64_t{at >> layout.low_bits} + i, 1);
    put_bits(bits, layout.lows + i * layout.low_bits, at & ((1U << layout.low_bits) - 1));
    put_bits(bits, layout.codes + i * kSparseCodeBits, code(i));
  }
}

// The levels of a message's block.
NARROWCAST_HOST_DEVICE inline SparseLevels read_sparse_levels(const uint8_t* bytes) {
  return {static_cast<uint16_t>(bytes[0] | bytes[1] << 8), static_cast<uint16_t>(bytes[2] | bytes[3] << 8), 0};
}

// Reads a block of any bytes: calls put(i, place, value) for its kept elements i = 0, 1 ..., whose places ascend and
// are below n. Returns false if the whole block is NaN: its first level is, or its places are not such a sequence. Then
// put may have been called for some elements. A block of zeros has no kept elements.
NARROWCAST_CALLS_ANY_SIDE
template <class Put>
NARROWCAST_HOST_DEVICE bool read_sparse_block(const SparseLayout& layout, const uint8_t* bytes, const Put& put) {
  const SparseLevels levels = read_sparse_levels(bytes);
  if (levels.are_zero() || levels.are_nan()) {
    return levels.are_zero();
  }
  const uint8_t* const bits = bytes + kLevelsBytes;
  int64_t read = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < layout.lows; ++i) {
    if (get_bits(bits, i, 1) == 0) {
      continue;
    }
    if (read == layout.kept) {
      return false;
    }
    const int64_t place =
        ((i - read) << layout.low_bits) + get_bits(bits, layout.lows + read * layout.low_bits, layout.low_bits);
    if (place <= last || place >= layout.n) {
      return false;
    }
    put(read, place, levels.value(get_bits(bits, layout.codes + read * kSparseCodeBits, kSparseCodeBits)));
    last = place;
    ++read;
  }
  return read == layout.kept;
}

// Writes the block of x[0..n) whose kept elements have these places.
inline void encode_sparse_places(const SparseLayout& layout, const float* x, const uint16_t* places, uint8_t* bytes) {
  const SparseLevels levels = sparse_levels(layout.kept, [&](int64_t i) { return x[places[i]]; });
  write_sparse_block(
      layout, levels, [&](int64_t i) { return places[i]; }, [&](int64_t i) { return levels.code(x[places[i]]); },
      bytes);
}

// Writes a block that contains NaN or Inf.
inline void encode_sparse_nan(const SparseLayout& layout, uint8_t* bytes) {
  const auto none = [](int64_t) { return 0U; };
  write_sparse_block(layout, nan_levels(), none, none, bytes);
}

// Encodes a block of n elements, 0 < n <= kSparseBlock: the definition.
inline void encode_sparse_block(int per_mille, const float* x, int64_t n, uint8_t* bytes) {
  const SparseLayout layout = sparse_layout(per_mille, n);
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = greater<uint32_t>(largest, magnitude_bits(x[i]));
  }
  if (largest >= kInfBits) {
    return encode_sparse_nan(layout, bytes);
  }
  const SparseThreshold threshold = sparse_threshold(largest, layout, [&](uint32_t bits) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      count += magnitude_bits(x[i]) >= bits ? 1 : 0;
    }
    return count;
  });
  uint16_t places[kMostKept];
  int64_t found = 0;
  int64_t equal = threshold.equal;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = magnitude_bits(x[i]);
    if (bits > threshold.least || (bits == threshold.least && equal-- > 0)) {
      places[found++] = static_cast<uint16_t>(i);
    }
  }
  encode_sparse_places(layout, x, places, bytes);
}

// Decodes a block of any bytes to out[0..n).
inline void decode_sparse_block(int per_mille, const uint8_t* bytes, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = 0;
  }
  const auto put = [&](int64_t, int64_t place, float value) { out[place] = value; };
  if (!read_sparse_block(sparse_layout(per_mille, n), bytes, put)) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = float_of_bits(kQuietNanBits);
    }
  }
}

// Calls body(first element, elements, first byte) for each block of an array of n elements.
template <class Body>
void for_sparse_blocks(int per_mille, int64_t n, const Body& body) {
  const int64_t block_bytes = sparse_block_bytes<int64_t>(per_mille, kSparseBlock);
  for (int64_t first = 0; first < n; first += kSparseBlock) {
    body(first, smaller<int64_t>(kSparseBlock, n - first), first / kSparseBlock * block_bytes);
  }
}

// Encodes x[0..n) to sparse_bytes(per_mille, n) bytes.
inline void encode_sparse(int per_mille, const float* x, int64_t n, uint8_t* bytes) {
  for_sparse_blocks(per_mille, n, [&](int64_t first, int64_t count, int64_t byte) {
    encode_sparse_block(per_mille, x + first, count, bytes + byte);
  });
}

// Decodes sparse_bytes(per_mille, n) bytes of any content to out[0..n).
inline void decode_sparse(int per_mille, const uint8_t* bytes, int64_t n, float* out) {
  for_sparse_blocks(per_mille, n, [&](int64_t first, int64_t count, int64_t byte) {
    decode_sparse_block(per_mille, bytes + byte, count, out + first);
  });
}

}  // namespace narrowcast::codec::wire

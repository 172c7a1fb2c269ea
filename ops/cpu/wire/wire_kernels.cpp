#include "ops/cpu/wire/wire_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/wire/wire_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "ops/codec/wire_message.h"
#include "ops/cpu/wire/block_message_lanes-inl.h"
#include "ops/cpu/wire/number_message_lanes-inl.h"
#include "ops/cpu/wire/wire_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// The message of a tile, which begins with a block. Without vectors, the plain codec is used.
template <class Format>
void encode_tile(const TileSource& source, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  codec::wire::encode<Format>(source.x, n, rounding, bytes);
}

template <class Format, class Sink>
void decode_tile(const uint8_t* bytes, int64_t n, float* out) {
  float values[kTile];
  codec::wire::decode<Format>(bytes, n, values);
  put_all<Sink>(values, n, out);
}

#else

// The messages of whole blocks or vectors.
template <class Format>
using Message = std::conditional_t<Format::kHasBlocks, BlockMessageLanes<Format>, NumberMessageLanes<Format>>;

// Elements that do not fill a vector or block are encoded from a copy, padded with zeros, whose codes are zeros.
template <class Format>
HWY_NOINLINE void encode_rest(const float* x, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  constexpr int64_t kWhole = Message<Format>::kWhole;
  float padded[kWhole] = {};
  uint8_t message[kWhole / Format::kBlock * Format::kBlockBytes];
  std::copy_n(x, n, padded);
  Message<Format>::encode({padded, nullptr}, kWhole, rounding, message);
  std::memcpy(bytes, message, static_cast<size_t>(codec::wire::encoded_size<Format>(n)));
}

template <class Format, class Sink>
HWY_NOINLINE void decode_rest(const uint8_t* bytes, int64_t n, float* out) {
  constexpr int64_t kWhole = Message<Format>::kWhole;
  float values[kWhole];
  uint8_t message[kWhole / Format::kBlock * Format::kBlockBytes] = {};
  std::memcpy(message, bytes, static_cast<size_t>(codec::wire::encoded_size<Format>(n)));
  Message<Format>::template decode<Assign>(message, kWhole, values);
  put_all<Sink>(values, n, out);
}

template <class Format>
HWY_NOINLINE void encode_tile(const TileSource& source, int64_t n, const Rounding& rounding, uint8_t* bytes) {
  const int64_t whole = n / Message<Format>::kWhole * Message<Format>::kWhole;
  if (whole > 0) {
    Message<Format>::encode(source, whole, rounding, bytes);
  }
  if (whole < n) {
    encode_rest<Format>(source.x + whole, n - whole, rounding.at(whole),
                        bytes + whole / Format::kBlock * Format::kBlockBytes);
  }
}

template <class Format, class Sink>
HWY_NOINLINE void decode_tile(const uint8_t* bytes, int64_t n, float* out) {
  const int64_t whole = n / Message<Format>::kWhole * Message<Format>::kWhole;
  Message<Format>::template decode<Sink>(bytes, whole, out);
  if (whole < n) {
    decode_rest<Format, Sink>(bytes + whole / Format::kBlock * Format::kBlockBytes, n - whole, out + whole);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// Calls body(first element, elements, first byte) for each tile of an array of n elements.
template <class Format, class Body>
HWY_INLINE void for_each_tile(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kTile) {
    body(i, std::min(kTile, n - i), i / Format::kBlock * Format::kBlockBytes);
  }
}

template <class Format, class T>
void encode(WireInput<T> input, const Rounding& rounding, uint8_t* bytes) {
  constexpr int64_t kTileMessage = kTile / Format::kBlock * Format::kBlockBytes;
  const hn::CappedTag<uint8_t, 16> d;
  alignas(64) float tile[kTile];
  alignas(64) uint8_t message[kTileMessage];
  const bool stream = hn::MaxLanes(d) == 16 && kTileMessage % 16 == 0 && is_streamed(bytes, input.n);
  for_each_tile<Format>(input.n, [&](int64_t begin, int64_t n, int64_t byte) {
    const TileSource source = source_of(input.x + begin, n, tile);
    if (stream && n == kTile) {
      encode_tile<Format>(source, n, rounding.at(begin), message);
      for (int64_t i = 0; i < kTileMessage; i += 16) {
        hn::Stream(hn::Load(d, message + i), d, bytes + byte + i);
      }
    } else {
      encode_tile<Format>(source, n, rounding.at(begin), bytes + byte);
    }
  });
  hwy::FlushStream();
}

template <class Format, class Sink>
void decode(const uint8_t* bytes, int64_t all, float* out) {
  for_each_tile<Format>(
      all, [&](int64_t begin, int64_t n, int64_t byte) { decode_tile<Format, Sink>(bytes + byte, n, out + begin); });
}

template <class Format>
void decode_to(const uint8_t* bytes, int64_t n, float* out) {
  if (is_streamed(out, n)) {
    decode<Format, Stream>(bytes, n, out);
    hwy::FlushStream();
  } else {
    decode<Format, Assign>(bytes, n, out);
  }
}

// Passes the part of rank r, from element `begin` and byte `byte` on, to the sink.
template <class Format, class Sink>
HWY_INLINE void take_part(const RankParts& parts, int64_t r, int64_t begin, int64_t byte, float* out) {
  const int64_t n = std::min(kTile, parts.n - begin);
  if (parts.messages[r] == nullptr) {
    put_all<Sink>(parts.own + begin, n, out);
  } else {
    decode_tile<Format, Sink>(parts.messages[r] + byte, n, out);
  }
}

template <class Format>
HWY_INLINE void average_tile(const RankParts& parts, const Quotient& quotient, int64_t begin, int64_t byte,
                             float* mean) {
  take_part<Format, FetchAhead<Assign>>(parts, 0, begin, byte, mean);
  for (int64_t r = 1; r < parts.ranks; ++r) {
    take_part<Format, FetchAhead<Accumulate>>(parts, r, begin, byte, mean);
  }
  divide(mean, std::min(kTile, parts.n - begin), quotient);
}

#if HWY_TARGET != HWY_SCALAR

// The sums over ranks of a vector of elements from i on. Messages are bytes of any alignment.
template <class D>
HWY_INLINE hn::Vec<D> sum_of_numbers(D d, const std::vector<const uint8_t*>& numbers, int64_t i) {
  const hn::Repartition<uint8_t, D> d_bytes;
  const auto first_byte = i * static_cast<int64_t>(sizeof(float));
  auto sum = hn::BitCast(d, hn::LoadU(d_bytes, numbers[0] + first_byte));
  for (size_t r = 1; r < numbers.size(); ++r) {
    sum = hn::Add(sum, hn::BitCast(d, hn::LoadU(d_bytes, numbers[r] + first_byte)));
  }
  return sum;
}

// Numbers that need no decoding are added as they are read, without an intermediate tile, in half the time. The means
// stay in the caches: one of the arrays is often the mean's own memory, and processes that read it from shared memory
// do so soon.
void average_numbers(const RankParts& parts, float* mean) {
  constexpr int64_t kVectors = 4;  // Independent additions.
  std::vector<const uint8_t*> numbers;
  for (int64_t r = 0; r < parts.ranks; ++r) {
    const uint8_t* const message = parts.messages[r];
    numbers.push_back(message == nullptr ? reinterpret_cast<const uint8_t*>(parts.own) : message);
  }
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Quotient quotient(parts.divisor());
  int64_t i = 0;
  for (; i + kVectors * lanes <= parts.n; i += kVectors * lanes) {
    const auto sum0 = sum_of_numbers(d, numbers, i);
    const auto sum1 = sum_of_numbers(d, numbers, i + lanes);
    const auto sum2 = sum_of_numbers(d, numbers, i + 2 * lanes);
    const auto sum3 = sum_of_numbers(d, numbers, i + 3 * lanes);
    hn::StoreU(quotient.of(d, sum0), d, mean + i);
    hn::StoreU(quotient.of(d, sum1), d, mean + i + lanes);
    hn::StoreU(quotient.of(d, sum2), d, mean + i + 2 * lanes);
    hn::StoreU(quotient.of(d, sum3), d, mean + i + 3 * lanes);
  }
  for (; i < parts.n; ++i) {
    hn::StoreU(quotient.of(d_one, sum_of_numbers(d_one, numbers, i)), d_one, mean + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

template <class Format>
void average(const RankParts& parts, float* mean) {
  const bool streams = is_streamed(mean, parts.n);
  const Quotient quotient(parts.divisor());
  alignas(64) float tile[kTile] = {};
  for_each_tile<Format>(parts.n, [&](int64_t begin, int64_t n, int64_t byte) {
    average_tile<Format>(parts, quotient, begin, byte, tile);
    streams ? put_all<Stream>(tile, n, mean + begin) : put_all<Assign>(tile, n, mean + begin);
  });
  hwy::FlushStream();
}

template <class Format>
void average_encode(const RankParts& parts, const Rounding& rounding, uint8_t* bytes) {
  const Quotient quotient(parts.divisor());
  alignas(64) float tile[kTile] = {};
  for_each_tile<Format>(parts.n, [&](int64_t begin, int64_t n, int64_t byte) {
    average_tile<Format>(parts, quotient, begin, byte, tile);
    encode_tile<Format>({tile, nullptr}, n, rounding.at(begin), bytes + byte);
  });
}

template <class Format>
constexpr auto average_of() {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<typename Format::Element, codec::wire::Binary32>) {
    return &average_numbers;
  } else
#endif
  {
    return &average<Format>;
  }
}

template <class Format>
inline constexpr WireKernels kWireKernels{
    {&encode<Format, float>, &encode<Format, double>, &encode<Format, c10::BFloat16>, &encode<Format, c10::Half>},
    &decode_to<Format>,
    average_of<Format>(),
    &average_encode<Format>,
    Format::kBlock,
    Format::kBlockBytes};

const WireKernels* kernels(WireFormat format) {
  return codec::wire::visit_fixed(format,
                                  [](auto type) -> const WireKernels* { return &kWireKernels<decltype(type)>; });
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {

HWY_EXPORT(kernels);

const WireKernels& wire_kernels(WireFormat format) { return *HWY_DYNAMIC_DISPATCH(kernels)(format); }

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

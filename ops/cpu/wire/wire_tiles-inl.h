// Tiles of messages: up to kTile elements, from the beginning of a block on. Included once per instruction set by files
// that use hwy/foreach_target.h.
#if defined(NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#undef NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#else
#define NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/codec/wire_message.h"
#include "ops/cpu/wire/message_lanes-inl.h"
#include "ops/cpu/wire/tile_inputs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sinks for decoded values, which assign them or add them to existing values.
struct Assign {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    hn::StoreU(value, d, out);
  }
};

// Writes past the caches, for arrays that would not stay in them: the memory is not read before it is written.
struct Stream {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    if constexpr (hn::MaxLanes(D()) > 1) {
      hn::Stream(value, d, out);
    } else {
      hn::StoreU(value, d, out);
    }
  }
};

struct Accumulate {
  static constexpr bool kFetchesAhead = false;

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(d, out), value), d, out);
  }
};

// A sink for callers that read a tile of several messages in turn: a tile is too short for the processor to recognise a
// stream.
template <class Sink>
struct FetchAhead : Sink {
  static constexpr bool kFetchesAhead = true;
};

// Passes values[0..n) to a sink.
template <class Sink>
HWY_INLINE void put_all(const float* values, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if constexpr (Sink::kFetchesAhead) {
      prefetch(values + i, kTileBytes, 4 * lanes);
    }
    Sink::put(d, hn::LoadU(d, values + i), out + i);
  }
  for (; i < n; ++i) {
    Sink::put(d_one, hn::LoadU(d_one, values + i), out + i);
  }
}

// Whether an array is too long for the caches: from 1 MiB of float32 on.
HWY_INLINE bool is_long(int64_t n) { return n >= int64_t{1} << 18; }

// Whether the array is also aligned for streaming vectors.
HWY_INLINE bool is_streamed(const void* out, int64_t n) {
  constexpr uintptr_t kAlignment = 64;
  return is_long(n) && reinterpret_cast<uintptr_t>(out) % kAlignment == 0;
}

// Calls body(first element, elements) for each grain of an array of n elements.
template <class Body>
HWY_INLINE void for_each_grain(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kTile) {
    body(i, std::min(kTile, n - i));
  }
}

// A lower bound for the array's length: a thread's part of a reordered array is spread over all of it.
template <class T>
HWY_INLINE int64_t array_length(const WireElements<T>& part) {
  return std::max(part.n, part.order.grains * kTile);
}

// The grain to prefetch while the grain at `begin` is processed; null if there are no more, or if it may already be
// cached.
template <class T>
HWY_INLINE const T* upcoming_of(const WireInput<T>& input, int64_t begin) {
  return is_long(array_length(input)) ? input.upcoming(begin) : nullptr;
}

// Division by a number of ranks, or by 1. For a power of two it multiplies by the inverse, which is faster and gives
// the same result.
class Quotient {
 public:
  explicit HWY_INLINE Quotient(int64_t divisor)
      : is_power_((divisor & (divisor - 1)) == 0), divisor_(static_cast<float>(divisor)), inverse_(1.0F / divisor_) {}

  template <class D>
  HWY_INLINE hn::Vec<D> of(D d, hn::Vec<D> sum) const {
    return is_power_ ? hn::Mul(sum, hn::Set(d, inverse_)) : hn::Div(sum, hn::Set(d, divisor_));
  }

 private:
  const bool is_power_;
  const float divisor_;
  const float inverse_;
};

// Passes the quotients of sums[0..n) to a sink.
template <class Sink>
HWY_INLINE void put_quotients(const float* sums, int64_t n, const Quotient& quotient, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d_one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    Sink::put(d, quotient.of(d, hn::LoadU(d, sums + i)), out + i);
  }
  for (; i < n; ++i) {
    Sink::put(d_one, quotient.of(d_one, hn::LoadU(d_one, sums + i)), out + i);
  }
}

HWY_INLINE void divide(float* sums, int64_t n, int64_t divisor) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Quotient quotient(divisor);
  for (int64_t i = 0; i < n; i += lanes) {  // A tile has room for whole vectors.
    hn::Store(quotient.of(d, hn::Load(d, sums + i)), d, sums + i);
  }
}

#if HWY_TARGET == HWY_SCALAR

// Without vectors, the plain codec is used.
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

template <class Format>
using Message = std::conditional_t<Format::kHasBlocks, MessageLanes<Format>, NumberMessageLanes<Format> >;

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

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NARROWCAST_OPS_CPU_WIRE_WIRE_TILES_INL_H_

// Messages in a wire format (ops/codec/wire_message.h, docs/reference/wire-format.md) over arrays. The kernels are
// vectorised, and the instruction set is chosen at run time. On each, bytes and floats equal those of the plain
// codec::wire::encode and decode.
//
// Each kernel runs on the calling thread. To use more threads, split the work at multiples of kWireGrain elements,
// which begin a block in every format, as for_wire_parts does: a part's message begins at WireKernels::first_byte of
// the array's message. Pointers need no alignment, must not overlap unless stated otherwise, and may be null if the
// size is 0. n >= 0. Messages of n elements have codec::wire::encoded_size bytes.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include <narrowcast/reduction.h>
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_grain.h"
#include "ops/codec/wire_rounding.h"

namespace narrowcast::cpu {

using codec::wire::kWireGrain;
using codec::wire::Rounding;

// A block begins at every multiple of kWireGrain elements, except in sparse formats. If a format's messages can be
// split (codec::wire::can_be_split), the messages of parts that begin there are parts of the array's message.
static_assert(std::all_of(kWireFormatRows.begin(), kWireFormatRows.end(),
                          [](const WireFormatRow& row) {
                            return codec::wire::is_sparse(row.format) || kWireGrain % row.block == 0;
                          }),
              "kWireGrain must begin a block in every format whose blocks are not larger");

// Elements of the smallest block that has a scale, in any format.
inline constexpr int64_t kLeastBlock = [] {
  int64_t least = kWireGrain;
  for (const WireFormatRow& row : kWireFormatRows) {
    least = row.block > 1 ? std::min(least, row.block) : least;
  }
  return least;
}();

// Calls body(first element, elements) for parts of n elements that begin at multiples of kWireGrain, on ATen's threads.
// Only for files listed in narrowcast_parallel_sources: elsewhere the parts run one after the other.
template <class Body>
void for_wire_parts(int64_t n, const Body& body) {
  constexpr int64_t kGrainsPerThread = 32;  // Enough work to start a thread for, some microseconds.
  const int64_t grains = (n + kWireGrain - 1) / kWireGrain;
  at::parallel_for(0, grains, kGrainsPerThread, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kWireGrain;
    body(first, std::min(end * kWireGrain, n) - first);
  });
}

// Grains by which memory is prefetched ahead: memory takes longer to answer than a grain takes to process. In the
// measurements 2 was too few and 6 too many; 3 and 4 were equally good. This holds for contiguous grains in all formats
// and for reordered grains.
inline constexpr int64_t kGrainsAhead = 3;

// Reorders the first `grains` grains of an array: place p has grain p * stride mod grains. If `grains` is 0, the order
// is the array's own.
struct GrainOrder {
  int64_t grains = 0;
  int64_t stride = 1;

  bool is_identity() const { return grains == 0; }

  // The index of the element at that place, a multiple of kWireGrain. The rest of its grain follows it.
  int64_t element(int64_t place) const {
    const int64_t grain = place / kWireGrain;
    return grain < grains ? grain * stride % grains * kWireGrain : place;
  }
};

// n elements of an array that begins at `x`, from place `place` on, a multiple of kWireGrain. Elements in the array's
// own order can also be given as a separate array.
template <class T>
struct WireElements {
  T* x;
  int64_t n;
  GrainOrder order = {};
  int64_t place = 0;

  // Pointer to element i, a multiple of kWireGrain; the rest of its grain follows it.
  T* grain(int64_t i) const { return x + order.element(place + i); }

  // The grain to prefetch while the grain of element i is processed; null if there are no more.
  T* upcoming(int64_t i) const {
    const int64_t later = i + kGrainsAhead * kWireGrain;
    return later < n ? grain(later) : nullptr;
  }

  // Whether the elements are known to be contiguous.
  bool is_neighbours() const { return order.is_identity() || n <= kWireGrain; }
};

// Elements to encode. T is float, double, c10::BFloat16 or c10::Half; elements are first rounded to float32.
template <class T>
using WireInput = WireElements<const T>;

using WireOutput = WireElements<float>;

// All ranks' contributions to a sum of n elements. The message of rank r is messages[r]; at most one is null, and that
// rank's part is `own`, as float32. ranks >= 1.
struct RankParts {
  const uint8_t* const* messages;
  int64_t ranks;
  const float* own;
  int64_t n;
  Reduction reduction = Reduction::kMean;

  // By which the sum is divided.
  int64_t divisor() const { return reduction == Reduction::kMean ? ranks : 1; }
};

template <class T>
using WireEncode = void (*)(WireInput<T>, const Rounding&, uint8_t*);

// The kernels of one format for one instruction set. The format's blocks are contiguous, each with its scale.
struct WireKernels {
  // Writes the message of the elements.
  std::tuple<WireEncode<float>, WireEncode<double>, WireEncode<c10::BFloat16>, WireEncode<c10::Half>> encode;

  // out[i] = element i of the message.
  void (*decode)(const uint8_t* bytes, int64_t n, float* out);

  // mean[i] = (((part of rank 0 + part of rank 1) + ...) / divisor, in float32 and in this order. May be written to
  // `own`.
  void (*average)(const RankParts& parts, float* mean);

  // Writes the message of that mean, in one pass over memory.
  void (*average_encode)(const RankParts& parts, const Rounding& rounding, uint8_t* bytes);

  int64_t block;        // Elements of a block.
  int64_t block_bytes;  // Bytes of a block.

  // The first byte of element `first`, a multiple of kWireGrain.
  int64_t first_byte(int64_t first) const { return first / block * block_bytes; }
};

// The kernels of that format for the current instruction set. Throws std::invalid_argument for a format whose messages
// cannot be split.
const WireKernels& wire_kernels(WireFormat format);

}  // namespace narrowcast::cpu

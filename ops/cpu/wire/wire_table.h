// What the wire kernels of every instruction set have in common.
#pragma once

#include <cstdint>
#include <tuple>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Kernels work on so many elements at a time, whose floats, codes and random words all stay in the first-level cache.
inline constexpr int64_t kTile = kWireGrain;

template <class T>
using WireEncode = void (*)(WireInput<T>, const Rounding&, uint8_t*);

// The functions of wire_kernels.h for one format and one instruction set.
struct WireKernels {
  std::tuple<WireEncode<float>, WireEncode<double>, WireEncode<c10::BFloat16>, WireEncode<c10::Half>> encode;
  void (*decode)(const uint8_t*, int64_t, float*);
  void (*decode_accumulate)(const uint8_t*, int64_t, float*);
  void (*average)(const RankParts&, float*);
  void (*average_encode)(const RankParts&, const Rounding&, uint8_t*);
};

}  // namespace narrowcast::cpu

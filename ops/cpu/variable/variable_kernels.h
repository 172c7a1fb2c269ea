// The steps of encoding and decoding messages whose blocks choose their widths (ops/codec/variable_width.h), for use by
// several threads. The kernels are vectorised, and the instruction set is chosen at run time. On each, bytes and floats
// equal those of the plain codec. The steps are combined in variable_message.h.
//
// Parts begin at multiples of kWireGrain elements. Pointers need no alignment and must not overlap unless stated
// otherwise.
#pragma once

#include <cstdint>
#include <tuple>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

using codec::wire::BlockExtent;

// Blocks in a grain.
inline constexpr int64_t kGrainBlocks = codec::wire::kGroupBlocks;
static_assert(kWireGrain == codec::wire::kVariableGroup, "parts are whole groups");

// Arrays with a number for each block have room for whole grains, and are read as such.
inline constexpr int64_t whole_grains(int64_t blocks) { return (blocks + kGrainBlocks - 1) / kGrainBlocks; }

// Writes the extent of each block of the part.
template <class T>
void variable_extents(WireInput<T> input, BlockExtent* extents);

// The bits of the largest magnitude of `blocks` blocks, according to their extents. `extents` has whole grains, with
// zeros after the last block.
uint32_t variable_largest(const BlockExtent* extents, int64_t blocks);

// The bytes of the codes of such blocks, or of every `stride`-th grain of them; all numbers must have a code.
int64_t variable_bytes(const BlockExtent* extents, int64_t blocks, int64_t stride, const codec::wire::StepCodes& codes);

// Writes the headers of `blocks` blocks.
void variable_headers(const BlockExtent* extents, int64_t blocks, const codec::wire::StepCodes& codes,
                      uint8_t* headers);

// Writes the offset of each grain's codes, and the end of the last grain's: whole_grains(blocks) + 1 numbers.
void variable_offsets(const uint8_t* headers, int64_t blocks, int64_t* byte_of_grain);

// The destination of a part's codes. It has the message's step, its blocks' headers, and the offset of each grain from
// `codes`, followed by the end of the last grain.
struct VariableGrains {
  uint16_t step;
  const uint8_t* headers;
  const int64_t* bytes;
  uint8_t* codes;
};

template <class T>
void variable_codes(WireInput<T> input, const Rounding& rounding, const VariableGrains& grains);

// A message, and the first byte of each of its grains.
struct VariableSource {
  codec::wire::VariableMessage message;
  const int64_t* byte_of_grain;
};

// Element i of `out` becomes element first + i of the message.
void variable_decode(const VariableSource& source, int64_t first, WireOutput out);

// Elements of a sum, from `first` on. The message of rank r is messages[r]; if that is null, its part is `own`, the
// float32 of these elements. `own` has the length of the mean, or its pointer is null if no rank has such a part.
struct VariableParts {
  const VariableSource* const* messages;
  int64_t ranks;
  WireInput<float> own;
  int64_t first;
  Reduction reduction = Reduction::kMean;

  // By which the sum is divided.
  int64_t divisor() const { return reduction == Reduction::kMean ? ranks : 1; }
};

// Like WireKernels::average. May be written to `own`. Unless `extents` is null, also writes the mean's extents there,
// like variable_extents.
void variable_average(const VariableParts& parts, WireOutput mean, BlockExtent* extents = nullptr);

#define NARROWCAST_DECLARE_VARIABLE(T)                               \
  extern template void variable_extents(WireInput<T>, BlockExtent*); \
  extern template void variable_codes(WireInput<T>, const Rounding&, const VariableGrains&);
NARROWCAST_DECLARE_VARIABLE(float)
NARROWCAST_DECLARE_VARIABLE(double)
NARROWCAST_DECLARE_VARIABLE(c10::BFloat16)
NARROWCAST_DECLARE_VARIABLE(c10::Half)
#undef NARROWCAST_DECLARE_VARIABLE

template <class T>
using VariableExtents = void (*)(WireInput<T>, BlockExtent*);
template <class T>
using VariableCodes = void (*)(WireInput<T>, const Rounding&, const VariableGrains&);

// The above functions for one instruction set.
struct VariableKernels {
  std::tuple<VariableExtents<float>, VariableExtents<double>, VariableExtents<c10::BFloat16>,
             VariableExtents<c10::Half>>
      extents;
  std::tuple<VariableCodes<float>, VariableCodes<double>, VariableCodes<c10::BFloat16>, VariableCodes<c10::Half>> codes;
  uint32_t (*largest)(const BlockExtent*, int64_t);
  int64_t (*bytes)(const BlockExtent*, int64_t, int64_t, const codec::wire::StepCodes&);
  void (*headers)(const BlockExtent*, int64_t, const codec::wire::StepCodes&, uint8_t*);
  void (*offsets)(const uint8_t*, int64_t, int64_t*);
  void (*decode)(const VariableSource&, int64_t, WireOutput);
  void (*average)(const VariableParts&, WireOutput, BlockExtent*);
};

}  // namespace narrowcast::cpu

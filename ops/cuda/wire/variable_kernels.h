// Messages in the variable formats (ops/codec/variable_width.h, docs/wire_format.md) over arrays in device memory: the
// same bytes and, but for the bits of a NaN, the same floats as the codec.
//
// All elements determine the step, without which none can be written; and the widths of all blocks before it where a
// block is. So each function launches several kernels, one behind the other, that leave what they have found in
// scratch memory. They go to `stream`, of the device that is current, and nobody waits. All pointers are to device
// memory, need the alignment of their elements and no more, and may be null where n is 0. std::invalid_argument for a
// number that is no FloatType; std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cstdint>

#include "ops/codec/variable_width.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch_arguments.h"

namespace narrowcast::cuda {

// An array, and where its message goes.
struct VariableEncodeArguments {
  int bits_per_element = 0;
  FloatType type = FloatType::kFloat32;  // x's.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  codec::wire::Rounding rounding = {};
  uint8_t* message = nullptr;
  void* scratch = nullptr;  // variable_encode_scratch(n) bytes, aligned to 8.
};

// A message, and where its array goes.
struct VariableDecodeArguments {
  int bits_per_element = 0;
  const uint8_t* message = nullptr;  // Any bytes.
  int64_t n = 0;
  FloatType type = FloatType::kFloat32;  // out's.
  void* out = nullptr;                   // n elements.
  void* scratch = nullptr;               // variable_decode_scratch(n) bytes, aligned to 8.
};

// Bytes of scratch memory for one call at a time.
int64_t variable_encode_scratch(int64_t n);
int64_t variable_decode_scratch(int64_t n);

// Writes the message of x.
void variable_encode(const VariableEncodeArguments& arguments, Stream stream);

// out[i] = element i of the message, rounded to the type.
void variable_decode(const VariableDecodeArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda

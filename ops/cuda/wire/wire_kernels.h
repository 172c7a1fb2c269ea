// Messages in a wire format (ops/codec/wire_format.h, docs/wire_format.md) over arrays in device memory: the same bytes
// and, but for the bits of a NaN, the same floats as ops/cpu/wire/wire_kernels.h.
//
// Each function launches one kernel on `stream`, of the device that is current, and does not wait. All pointers are to
// device memory, need the alignment of their elements and no more, and may be null where n is 0. std::invalid_argument
// for a number that is no WireFormat or FloatType, or for too many ranks; std::runtime_error if the kernel cannot be
// launched.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch_arguments.h"

namespace narrowcast::cuda {

using codec::wire::Rounding;

// A mean is of at most this many ranks: a launch passes on no more.
inline constexpr int64_t kMaxRanks = 256;

// An array, and where its message goes.
struct EncodeArguments {
  FloatType type = FloatType::kFloat32;  // x's.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  // Error feedback: null, or n numbers that are added to x and then replaced by what the message lacks of the sum;
  // where that is not finite they stay.
  float* residual = nullptr;
  Rounding rounding = {};
  uint8_t* message = nullptr;
};

// A message, and where its array goes.
struct DecodeArguments {
  const uint8_t* message = nullptr;
  int64_t n = 0;
  FloatType type = FloatType::kFloat32;  // out's.
  void* out = nullptr;                   // n elements.
};

// What all ranks contribute to a mean of n elements: messages, and one of them an array.
struct RankParts {
  const uint8_t* messages[kMaxRanks] = {};  // By rank.
  int64_t ranks = 0;                        // 1 to kMaxRanks.
  int64_t own_rank = 0;                     // Whose part is `own` and whose message is not read; `ranks` if nobody's.
  FloatType type = FloatType::kFloat32;     // own's.
  const void* own = nullptr;                // n elements.
  float* own_residual = nullptr;            // Null, or n numbers that are added to `own` and then set to 0.
  int64_t n = 0;
};

// std::invalid_argument for parts that no kernel takes.
inline void check_parts(const RankParts& parts) {
  check_float_type(parts.type);
  if (parts.ranks < 1 || parts.ranks > kMaxRanks) {
    throw std::invalid_argument("a mean on a GPU is of 1 to " + std::to_string(kMaxRanks) + " ranks, not of " +
                                std::to_string(parts.ranks));
  }
  if (parts.own_rank < 0 || parts.own_rank > parts.ranks) {
    throw std::invalid_argument("own_rank is " + std::to_string(parts.own_rank) + " of " + std::to_string(parts.ranks));
  }
}

// What goes into a mean, and where that goes as an array.
struct AverageArguments {
  RankParts parts = {};
  void* mean = nullptr;  // n elements of parts.type. May be parts.own.
};

// What goes into a mean, and where that goes as a message.
struct AverageEncodeArguments {
  RankParts parts = {};
  float* mean_residual = nullptr;  // To the mean what EncodeArguments::residual is to x.
  Rounding rounding = {};
  uint8_t* message = nullptr;
};

// Writes the message of x.
void wire_encode(WireFormat format, const EncodeArguments& arguments, Stream stream);

// out[i] = element i of the message, rounded to the type.
void wire_decode(WireFormat format, const DecodeArguments& arguments, Stream stream);

// mean[i] = (((part of rank 0 + part of rank 1) + ...) / ranks, in float32 and in this order; then rounded to the type.
void wire_average(WireFormat format, const AverageArguments& arguments, Stream stream);

// Writes the message of that mean, not rounded to the type, in one pass over memory.
void wire_average_encode(WireFormat format, const AverageEncodeArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda

// What the kernels of wire formats work on. All pointers are to device memory,
// need the alignment of their elements and no more, and may be null where n is 0.
#pragma once

#include <cstdint>

#include "ops/codec/wire_rounding.h"
#include "ops/cuda/float_type.h"

namespace narrowcast::cuda {

using codec::wire::Rounding;

// As many as a launch passes on.
inline constexpr int64_t kMaxRanks = 256;

struct EncodeArguments {
  FloatType type = FloatType::kFloat32;  // Of x.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  // Error feedback: null, or n numbers that are added to x and then replaced by what the message lacks of the sum;
  // where that is not finite they stay.
  float* residual = nullptr;
  Rounding rounding = {};
  uint8_t* message = nullptr;
};

struct DecodeArguments {
  const uint8_t* message = nullptr;
  int64_t n = 0;
  FloatType type = FloatType::kFloat32;  // Of out.
  void* out = nullptr;                   // n elements.
};

// What all ranks contribute to a mean of n elements: messages, and one of them an array.
struct RankParts {
  const uint8_t* messages[kMaxRanks] = {};  // By rank.
  int64_t ranks = 0;                        // 1 to kMaxRanks.
  int64_t own_rank = 0;                     // Whose part is `own` and whose message is not read; `ranks` if nobody's.
  FloatType type = FloatType::kFloat32;     // Of own.
  const void* own = nullptr;                // n elements.
  float* own_residual = nullptr;            // Null, or n numbers that are added to `own` and then set to 0.
  int64_t n = 0;
};

struct AverageArguments {
  RankParts parts = {};
  void* mean = nullptr;  // n elements of parts.type. May be parts.own.
};

struct AverageEncodeArguments {
  RankParts parts = {};
  float* mean_residual = nullptr;  // To the mean what EncodeArguments::residual is to x.
  Rounding rounding = {};
  uint8_t* message = nullptr;
};

}  // namespace narrowcast::cuda

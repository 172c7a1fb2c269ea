// Messages in a wire format (ops/codec/wire_format.h, docs/reference/wire-format.md) over arrays in device memory; for
// variable formats see variable_kernels.h. The bytes equal those of ops/cpu/wire/wire_kernels.h, and so do the floats,
// except for the bits of a NaN.
//
// Each function launches one kernel on `stream`, of the current device, and does not wait. All pointers are to device
// memory, are aligned for their elements only, and may be null if n is 0. Errors:
// - std::invalid_argument: a value is not a valid WireFormat or FloatType, or there are no ranks.
// - std::runtime_error: the kernel cannot be launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <narrowcast/reduction.h>
#include "ops/codec/wire_format.h"
#include "ops/codec/wire_grain.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

using codec::wire::kWireGrain;
using codec::wire::Rounding;

// Grains of a shard, counted from its first one.
struct GrainRange {
  int64_t begin = 0;
  int64_t end = 0;

  NARROWCAST_HOST_DEVICE int64_t size() const { return end - begin; }
};

// The division of an array into messages: a single message or, if the array is cut into shards of nearly equal size,
// one message per shard or per chunk of a shard. The message of shard i is in slot i, or in slot i - 1 for shards after
// the one that is left out. Each slot begins `stride` bytes after the previous one. Made by shards_of and chunk_of.
struct Shards {
  uint32_t count = 1;     // >= 1
  uint32_t left_out = 1;  // The shard that has no message; `count` if all have one.
  int64_t stride = 0;
  int64_t each = 0;   // The least number of grains per shard.
  uint32_t over = 0;  // The number of shards with one grain more, < count, spread evenly.
  bool of_chunk = false;
  GrainRange of_shorter = {};  // The grains that become the message of a shard with `each` grains.
  GrainRange of_longer = {};   // The same for a shard with one grain more.

  NARROWCAST_HOST_DEVICE uint32_t slots() const { return count - (left_out < count ? 1U : 0U); }
  NARROWCAST_HOST_DEVICE uint32_t shard_in(uint32_t slot) const { return slot + (slot >= left_out ? 1U : 0U); }
  // The first grain of a shard.
  NARROWCAST_HOST_DEVICE int64_t begin(uint32_t shard) const { return each * shard + over * shard / count; }
  // The grains of a shard's message, counted from the array's first grain.
  NARROWCAST_HOST_DEVICE GrainRange grains(uint32_t shard) const {
    const int64_t first = begin(shard);
    const GrainRange& of_shard = begin(shard + 1) - first == each ? of_shorter : of_longer;
    return {first + of_shard.begin, first + of_shard.end};
  }
  NARROWCAST_HOST_DEVICE int64_t most_grains() const {
    return over > 0 && of_longer.size() > of_shorter.size() ? of_longer.size() : of_shorter.size();
  }
};

// The shards of an array of n elements. Throws std::invalid_argument if `count` is less than 1, or more than a launch
// can number.
inline Shards shards_of(int64_t n, int64_t count, int64_t left_out, int64_t stride) {
  constexpr int64_t kMost = 65'535;
  if (count < 1 || count > kMost) {
    throw std::invalid_argument("an array on a GPU must have 1 to " + std::to_string(kMost) + " shards, but has " +
                                std::to_string(count));
  }
  const int64_t grains = (n + kWireGrain - 1) / kWireGrain;
  Shards shards;
  shards.count = static_cast<uint32_t>(count);
  shards.left_out = static_cast<uint32_t>(left_out);
  shards.stride = stride;
  shards.each = grains / count;
  shards.over = static_cast<uint32_t>(grains % count);
  shards.of_shorter = {0, shards.each};
  shards.of_longer = {0, shards.each + 1};
  return shards;
}

// Chunk number `chunk` of every shard, of `chunks` nearly equal chunks. Throws std::invalid_argument if there is no
// such chunk.
inline Shards chunk_of(Shards shards, int64_t chunk, int64_t chunks) {
  if (chunk < 0 || chunk >= chunks) {
    throw std::invalid_argument("chunk must be in 0.." + std::to_string(chunks - 1) + ", but is " +
                                std::to_string(chunk));
  }
  const auto cut = [&](int64_t grains) {
    const auto before = [&](int64_t i) { return grains / chunks * i + grains % chunks * i / chunks; };
    return GrainRange{before(chunk), before(chunk + 1)};
  };
  shards.of_chunk = chunks > 1;
  shards.of_shorter = cut(shards.each);
  shards.of_longer = cut(shards.each + 1);
  return shards;
}

// An array, and the destination of its message.
struct EncodeArguments {
  FloatType type = FloatType::kFloat32;  // x's type.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  // Error feedback: null, or n numbers that are added to x and then replaced by the sum minus its decoded message. They
  // do not change where that difference is not finite.
  float* residual = nullptr;
  Rounding rounding = {};
  uint8_t* message = nullptr;  // The first slot's message.
  Shards shards = {};
};

// A message, and the destination of its elements.
struct DecodeArguments {
  const uint8_t* message = nullptr;  // The first slot's message.
  int64_t n = 0;
  FloatType type = FloatType::kFloat32;  // out's type.
  void* out = nullptr;                   // n elements; the elements of a shard that is left out do not change.
  Shards shards = {};
};

// All ranks' contributions to a mean of n elements: messages, and at most one array.
struct RankParts {
  const uint8_t* first = nullptr;        // Rank 0's message.
  const uint8_t* behind_own = nullptr;   // The message of rank own_rank + 1.
  int64_t stride = 0;                    // Bytes from a rank's message to the next rank's.
  int64_t ranks = 0;                     // >= 1
  int64_t own_rank = 0;                  // The rank whose part is `own` and whose message is not read; `ranks` if all
                                         // parts are messages.
  FloatType type = FloatType::kFloat32;  // own's type.
  const void* own = nullptr;             // n elements.
  // Null, or n numbers that are added to `own`. wire_average_encode sets them to 0 where the mean minus its decoded
  // message is finite.
  float* own_residual = nullptr;
  int64_t n = 0;
  Reduction reduction = Reduction::kMean;

  // By which the sum is divided.
  NARROWCAST_HOST_DEVICE int64_t divisor() const { return reduction == Reduction::kMean ? ranks : 1; }

  NARROWCAST_HOST_DEVICE const uint8_t* message(int64_t rank) const {
    return rank < own_rank ? first + rank * stride : behind_own + (rank - own_rank - 1) * stride;
  }
};

// Sets the positions of the messages, by rank; the pointer of the rank whose part is an array is null. Throws
// std::invalid_argument if the messages of neighbouring ranks are not all at the same distance.
inline void place_messages(const std::vector<const uint8_t*>& by_rank, RankParts& parts) {
  parts.ranks = static_cast<int64_t>(by_rank.size());
  parts.own_rank = std::find(by_rank.begin(), by_rank.end(), nullptr) - by_rank.begin();
  parts.first = parts.own_rank > 0 ? by_rank[0] : nullptr;
  parts.behind_own = parts.own_rank + 1 < parts.ranks ? by_rank[static_cast<size_t>(parts.own_rank) + 1] : nullptr;
  parts.stride = 0;
  for (size_t rank = 1; rank < by_rank.size() && parts.stride == 0; ++rank) {
    const bool are_messages = by_rank[rank - 1] != nullptr && by_rank[rank] != nullptr;
    parts.stride = are_messages ? by_rank[rank] - by_rank[rank - 1] : 0;
  }
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto number = static_cast<int64_t>(rank);
    if (number != parts.own_rank && by_rank[rank] != parts.message(number)) {
      throw std::invalid_argument("messages must be equally spaced in memory, but the message of rank " +
                                  std::to_string(rank) + " of " + std::to_string(by_rank.size()) + " is not");
    }
  }
}

// Parts that consist of a single message.
inline RankParts only_message(const uint8_t* message, int64_t n) {
  RankParts parts;
  parts.first = message;
  parts.ranks = 1;
  parts.own_rank = 1;
  parts.n = n;
  return parts;
}

// Throws std::invalid_argument for parts that no kernel accepts.
inline void check_parts(const RankParts& parts) {
  check_float_type(parts.type);
  if (parts.ranks < 1) {
    throw std::invalid_argument("a mean needs at least one rank, but has " + std::to_string(parts.ranks));
  }
  if (parts.own_rank < 0 || parts.own_rank > parts.ranks) {
    throw std::invalid_argument("own_rank must be in 0.." + std::to_string(parts.ranks) + ", but is " +
                                std::to_string(parts.own_rank));
  }
}

// Contributions to a mean, and its destination as an array.
struct AverageArguments {
  RankParts parts = {};
  void* mean = nullptr;  // n elements of parts.type. May be parts.own.
};

// Contributions to a mean, and its destination as a message.
struct AverageEncodeArguments {
  RankParts parts = {};
  float* mean_residual = nullptr;  // The mean's residual, used like EncodeArguments::residual.
  Rounding rounding = {};
  uint8_t* message = nullptr;
};

// Writes the message of x.
void wire_encode(WireFormat format, const EncodeArguments& arguments, Stream stream);

// out[i] = element i of the message, rounded to the type.
void wire_decode(WireFormat format, const DecodeArguments& arguments, Stream stream);

// mean[i] = (((part of rank 0 + part of rank 1) + ...) / divisor, in float32 and in this order; then rounded to the
// type.
void wire_average(WireFormat format, const AverageArguments& arguments, Stream stream);

// Writes the message of that mean, before it is rounded to the type, in one pass over memory.
void wire_average_encode(WireFormat format, const AverageEncodeArguments& arguments, Stream stream);

}  // namespace narrowcast::cuda

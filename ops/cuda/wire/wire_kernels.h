// Messages in a wire format (ops/codec/wire_format.h, docs/wire_format.md), but for the variable ones
// (variable_kernels.h), over arrays in device memory: the same bytes and, but for the bits of a NaN, the same floats as
// ops/cpu/wire/wire_kernels.h.
//
// Each function launches one kernel on `stream`, of the device that is current, and does not wait. All pointers are to
// device memory, need the alignment of their elements and no more, and may be null where n is 0. std::invalid_argument
// for a number that is no WireFormat or FloatType, or for no ranks; std::runtime_error if the kernel cannot be
// launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/codec/wire_rounding.h"
#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

using codec::wire::Rounding;

// Shards begin at multiples of so many elements, as those of collectives::cut do.
inline constexpr int64_t kShardGrain = 1024;

// Grains of a shard, counted from its first one.
struct GrainRange {
  int64_t begin = 0;
  int64_t end = 0;

  NARROWCAST_HOST_DEVICE int64_t size() const { return end - begin; }
};

// How an array becomes messages: one or, cut into shards as even as can be, one of each shard. The message of shard i
// lies in slot i, or in slot i - 1 behind the shard that has none; every slot begins `stride` bytes behind the one
// before. Or it becomes those of a chunk of every shard. Made by shards_of and chunk_of.
struct Shards {
  uint32_t count = 1;     // >= 1
  uint32_t left_out = 1;  // The shard that has no message; `count` for none.
  int64_t stride = 0;
  int64_t each = 0;   // Grains of a shard, and
  uint32_t over = 0;  // so many more, fewer than there are shards, spread over them.
  bool of_chunk = false;
  GrainRange of_shorter = {};  // Of a shard of `each` grains those that become its message,
  GrainRange of_longer = {};   // and of a shard of one more.

  NARROWCAST_HOST_DEVICE uint32_t slots() const { return count - (left_out < count ? 1U : 0U); }
  NARROWCAST_HOST_DEVICE uint32_t shard_in(uint32_t slot) const { return slot + (slot >= left_out ? 1U : 0U); }
  // The first grain of a shard.
  NARROWCAST_HOST_DEVICE int64_t begin(uint32_t shard) const { return each * shard + over * shard / count; }
  // The grains of a shard's message, counted from the array's first one.
  NARROWCAST_HOST_DEVICE GrainRange grains(uint32_t shard) const {
    const int64_t first = begin(shard);
    const GrainRange& of_shard = begin(shard + 1) - first == each ? of_shorter : of_longer;
    return {first + of_shard.begin, first + of_shard.end};
  }
  NARROWCAST_HOST_DEVICE int64_t most_grains() const {
    return over > 0 && of_longer.size() > of_shorter.size() ? of_longer.size() : of_shorter.size();
  }
};

// The shards of an array of n elements. std::invalid_argument for less than one, or more than a launch can number.
inline Shards shards_of(int64_t n, int64_t count, int64_t left_out, int64_t stride) {
  constexpr int64_t kMost = 65'535;
  if (count < 1 || count > kMost) {
    throw std::invalid_argument("an array on a GPU is cut into 1 to " + std::to_string(kMost) + " shards, not into " +
                                std::to_string(count));
  }
  const int64_t grains = (n + kShardGrain - 1) / kShardGrain;
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

// A chunk of every shard, of `chunks` as even as can be. std::invalid_argument where there are not so many.
inline Shards chunk_of(Shards shards, int64_t chunk, int64_t chunks) {
  if (chunk < 0 || chunk >= chunks) {
    throw std::invalid_argument("there is no chunk " + std::to_string(chunk) + " of " + std::to_string(chunks));
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

// An array, and where its message goes.
struct EncodeArguments {
  FloatType type = FloatType::kFloat32;  // x's.
  const void* x = nullptr;               // n elements.
  int64_t n = 0;
  // Error feedback: null, or n numbers that are added to x and then replaced by what the message lacks of the sum;
  // where that is not finite they stay.
  float* residual = nullptr;
  Rounding rounding = {};
  uint8_t* message = nullptr;  // The first slot's.
  Shards shards = {};
};

// A message, and where its array goes.
struct DecodeArguments {
  const uint8_t* message = nullptr;  // The first slot's.
  int64_t n = 0;
  FloatType type = FloatType::kFloat32;  // out's.
  void* out = nullptr;                   // n elements; those of a shard that is left out stay.
  Shards shards = {};
};

// What all ranks contribute to a mean of n elements: messages, and one of them an array.
struct RankParts {
  const uint8_t* first = nullptr;        // Rank 0's message.
  const uint8_t* behind_own = nullptr;   // That of rank own_rank + 1.
  int64_t stride = 0;                    // Bytes from a rank's message to the next one's.
  int64_t ranks = 0;                     // >= 1
  int64_t own_rank = 0;                  // Whose part is `own` and whose message is not read; `ranks` if nobody's.
  FloatType type = FloatType::kFloat32;  // own's.
  const void* own = nullptr;             // n elements.
  // Null, or n numbers that are added to `own`. wire_average_encode sets them to 0 where the message of the mean is
  // finite.
  float* own_residual = nullptr;
  int64_t n = 0;

  NARROWCAST_HOST_DEVICE const uint8_t* message(int64_t rank) const {
    return rank < own_rank ? first + rank * stride : behind_own + (rank - own_rank - 1) * stride;
  }
};

// Says where the messages are, by rank; null for the one whose part is an array. std::invalid_argument where those of
// neighbouring ranks do not all lie equally far from each other.
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
      throw std::invalid_argument("the message of rank " + std::to_string(rank) + " of " +
                                  std::to_string(by_rank.size()) + " lies elsewhere than those before it say");
    }
  }
}

// std::invalid_argument for parts that no kernel takes.
inline void check_parts(const RankParts& parts) {
  check_float_type(parts.type);
  if (parts.ranks < 1) {
    throw std::invalid_argument("a mean is of at least one rank, not of " + std::to_string(parts.ranks));
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

// Where the messages lie that a mean on a stream sends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {

// Messages begin at multiples of so many bytes, a line of a GPU's cache, in all that travels: NCCL copies single bytes
// where one begins at no multiple of 16.
inline constexpr int64_t kSlotBytes = 128;

// The bytes of a message and of what is behind it up to the next one.
constexpr int64_t slot_bytes(int64_t bytes) { return (bytes + kSlotBytes - 1) / kSlotBytes * kSlotBytes; }

// From how many bytes of messages on an array goes in chunks, each of at least so many: a chunk costs a launch of each
// kernel and a latency of each collective, some 30 us, and 4 MiB take 80 us at 400 Gbit/s. On NVLink, where they take
// 10 us, and where buckets are smaller, as c10d's of 25 MiB are, the two streams of a hook overlap whole buckets.
inline constexpr int64_t kLeastChunkBytes = int64_t{4} << 20;

// More of them hide little more: of 8 chunks an eighth of the codec's time is left.
inline constexpr int64_t kMostChunks = 8;

// How many chunks an array goes in whose message has `bytes`, and which consists of `grains` that stay together.
constexpr int64_t chunk_count(int64_t bytes, int64_t grains, int64_t least_bytes) {
  const int64_t most = grains < kMostChunks ? grains : kMostChunks;
  const int64_t count = bytes / least_bytes < most ? bytes / least_bytes : most;
  return count < 1 ? 1 : count;
}

// An array that travels in two shots.
struct ShardedArray {
  WireFormat format = WireFormat::kFp32;
  int64_t numel = 0;
  int64_t exact_numel = 0;                       // ExactElements, which travel with its first chunk.
  int64_t least_chunk_bytes = kLeastChunkBytes;  // Not in variable formats, which go in two_shot_chunks.
};

// Messages of two shots side by side: chunk after chunk, and of each chunk one for the shard of each rank, each in a
// slot that would hold the longest. In those of the first chunk the exact elements of the shard follow, from the next
// line on. A chunk is that part of every shard (ShardSlots), so that no element has another owner than without chunks.
class ShardMessages {
 public:
  ShardMessages(const ShardedArray& array, int64_t world_size);

  int64_t chunks() const { return static_cast<int64_t>(slot_bytes_.size()); }
  int64_t bytes() const { return begin(chunks()); }

  // Of one chunk's messages the first byte, and the bytes from one to the next.
  int64_t begin(int64_t chunk) const;
  int64_t slot_bytes(int64_t chunk) const { return slot_bytes_.at(static_cast<size_t>(chunk)); }

  // The part of a rank's shard that is in a chunk.
  Segment segment(int64_t rank, int64_t chunk) const;

  // The slots of a chunk, all of them or all but one rank's.
  ShardSlots slots(int64_t chunk) const { return slots_without(chunk, world_size_); }
  ShardSlots slots_without(int64_t chunk, int64_t rank) const {
    return {world_size_, rank, slot_bytes(chunk), chunk, chunks()};
  }

  // Where exact elements lie: from that byte of the first chunk's slots on, of which these are cut like an array.
  int64_t exact_begin() const { return exact_begin_; }
  Segment exact_shard(int64_t rank) const;
  ShardSlots exact_slots() const { return exact_slots_without(world_size_); }
  ShardSlots exact_slots_without(int64_t rank) const { return {world_size_, rank, slot_bytes(0)}; }

  // What rank `rank` sends of its mean or array: bytes without what is behind them.
  int64_t message_bytes(int64_t rank) const;

  // `messages`: uint8 [bytes()]. Writes what those of a chunk, or all, say to `array`, [numel].
  void decode_chunk(const at::Tensor& messages, int64_t chunk, const at::Tensor& array) const;
  void decode(const at::Tensor& messages, const at::Tensor& array) const;

  // The same of exact elements: float32 [exact_numel].
  void decode_exact(const at::Tensor& messages, const at::Tensor& exact) const;

 private:
  const ShardedArray array_;
  const int64_t world_size_;
  std::vector<int64_t> slot_bytes_;  // By chunk.
  int64_t exact_begin_ = 0;
};

}  // namespace narrowcast::collectives

// The offsets of the messages of a mean on a stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {

// Every message begins at a multiple of this number of bytes, a cache line of a GPU. NCCL copies byte by byte if a
// message begins at an address that is not a multiple of 16.
inline constexpr int64_t kSlotBytes = 128;

// The bytes of a message with its padding up to the next one.
constexpr int64_t slot_bytes(int64_t bytes) { return (bytes + kSlotBytes - 1) / kSlotBytes * kSlotBytes; }

// The least bytes of a chunk; an array with at least twice as many is sent in chunks. A chunk costs a launch of each
// kernel and a latency of each collective, about 30 us; 4 MiB take 80 us at 400 Gbit/s. On NVLink, where 4 MiB take 10
// us, chunks do not pay. Smaller buckets, like c10d's of 25 MiB, need none: the two streams of a hook overlap whole
// buckets.
inline constexpr int64_t kLeastChunkBytes = int64_t{4} << 20;

// More chunks hide little more: with 8 chunks an eighth of the codec's time is left.
inline constexpr int64_t kMostChunks = 8;

// Number of chunks of an array whose message has `bytes`. The array consists of `grains` that cannot be split.
constexpr int64_t chunk_count(int64_t bytes, int64_t grains, int64_t least_bytes) {
  const int64_t most = grains < kMostChunks ? grains : kMostChunks;
  const int64_t count = bytes / least_bytes < most ? bytes / least_bytes : most;
  return count < 1 ? 1 : count;
}

// An array that is sent in two shots.
struct ShardedArray {
  WireFormat format = WireFormat::kFp32;
  int64_t numel = 0;
  int64_t exact_numel = 0;                       // ExactElements, which are sent with its first chunk.
  int64_t least_chunk_bytes = kLeastChunkBytes;  // Not used in variable formats, which are cut into two_shot_chunks.
};

// Messages of two shots side by side. They lie chunk after chunk; each chunk has one message per rank, for that rank's
// shard, in slots as long as the longest. In the first chunk's slots the exact elements of the shard follow, from the
// next cache line on. A chunk is a part of every shard (ShardSlots), so that chunks do not change the owner of an
// element.
class ShardMessages {
 public:
  ShardMessages(const ShardedArray& array, int64_t world_size);

  int64_t chunks() const { return static_cast<int64_t>(slot_bytes_.size()); }
  int64_t bytes() const { return begin(chunks()); }

  // Offset of a chunk's first message, and bytes from one of its messages to the next.
  int64_t begin(int64_t chunk) const;
  int64_t slot_bytes(int64_t chunk) const { return slot_bytes_.at(static_cast<size_t>(chunk)); }

  // The part of a rank's shard that is in a chunk.
  ElementRange range(int64_t rank, int64_t chunk) const;

  // The slots of a chunk: of all ranks, or of all except one.
  ShardSlots slots(int64_t chunk) const { return slots_without(chunk, world_size_); }
  ShardSlots slots_without(int64_t chunk, int64_t rank) const {
    return {world_size_, rank, slot_bytes(chunk), chunk, chunks()};
  }

  // Exact elements begin at this byte of the first chunk's slots. They are cut into shards like an array.
  int64_t exact_begin() const { return exact_begin_; }
  ElementRange exact_shard(int64_t rank) const;
  ShardSlots exact_slots() const { return exact_slots_without(world_size_); }
  ShardSlots exact_slots_without(int64_t rank) const { return {world_size_, rank, slot_bytes(0)}; }

  // Bytes that rank `rank` sends of its mean or array, without padding.
  int64_t message_bytes(int64_t rank) const;

  // `messages`: uint8 [bytes()]. Decodes one chunk, or all, into `array`, [numel].
  void decode_chunk(const at::Tensor& messages, int64_t chunk, const at::Tensor& array) const;
  void decode(const at::Tensor& messages, const at::Tensor& array) const;

  // Decodes exact elements into `exact`, float32 [exact_numel].
  void decode_exact(const at::Tensor& messages, const at::Tensor& exact) const;

 private:
  const ShardedArray array_;
  const int64_t world_size_;
  std::vector<int64_t> slot_bytes_;  // By chunk.
  int64_t exact_begin_ = 0;
};

}  // namespace narrowcast::collectives

#include "ops/collectives/all_reduce/stream/shard_messages.h"
#include "ops/collectives/all_reduce/algorithms/first_hop.h"

#include <algorithm>

namespace narrowcast::collectives {
namespace {

int64_t chunks_of(const ShardedArray& array, int64_t world_size) {
  if (codec::wire::is_variable(array.format)) {
    return two_shot_chunks(array.numel, world_size, array.format);
  }
  const int64_t grains_of_shard = array.numel / cpu::kWireGrain / world_size;
  return chunk_count(encoded_size(array.numel, array.format), grains_of_shard, array.least_chunk_bytes);
}

}  // namespace

ShardMessages::ShardMessages(const ShardedArray& array, int64_t world_size) : array_(array), world_size_(world_size) {
  slot_bytes_.resize(static_cast<size_t>(chunks_of(array, world_size)));
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    int64_t& slot = slot_bytes_[static_cast<size_t>(chunk)];
    for (int64_t rank = 0; rank < world_size; ++rank) {
      slot = std::max(slot, collectives::slot_bytes(encoded_size(range(rank, chunk).numel, array.format)));
    }
  }
  exact_begin_ = slot_bytes_[0];
  int64_t exact_slot = 0;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const int64_t bytes = encoded_size(exact_shard(rank).numel, WireFormat::kFp32);
    exact_slot = std::max(exact_slot, collectives::slot_bytes(bytes));
  }
  slot_bytes_[0] += exact_slot;
}

int64_t ShardMessages::begin(int64_t chunk) const {
  int64_t begin = 0;
  for (int64_t before = 0; before < chunk; ++before) {
    begin += slot_bytes(before) * world_size_;
  }
  return begin;
}

ElementRange ShardMessages::range(int64_t rank, int64_t chunk) const {
  return part_of(shard_of(rank, world_size_, array_.numel), chunk, chunks(), cpu::kWireGrain);
}

ElementRange ShardMessages::exact_shard(int64_t rank) const { return shard_of(rank, world_size_, array_.exact_numel); }

int64_t ShardMessages::message_bytes(int64_t rank) const {
  return encoded_size(shard_of(rank, world_size_, array_.numel).numel, array_.format) +
         encoded_size(exact_shard(rank).numel, WireFormat::kFp32);
}

void ShardMessages::decode_chunk(const at::Tensor& messages, int64_t chunk, const at::Tensor& array) const {
  make_wire_codec(array_.format, array.device().type())
      ->decode_shards(messages.const_data_ptr<uint8_t>() + begin(chunk), slots(chunk), {array, {0, array_.numel}});
}

void ShardMessages::decode(const at::Tensor& messages, const at::Tensor& array) const {
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    decode_chunk(messages, chunk, array);
  }
}

void ShardMessages::decode_exact(const at::Tensor& messages, const at::Tensor& exact) const {
  if (array_.exact_numel > 0) {
    make_wire_codec(WireFormat::kFp32, exact.device().type())
        ->decode_shards(messages.const_data_ptr<uint8_t>() + exact_begin_, exact_slots(),
                        {exact, {0, array_.exact_numel}});
  }
}

}  // namespace narrowcast::collectives

#include "ops/collectives/reduce_scatter/stream_reduce_scatter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/collectives/all_reduce/stream/shard_messages.h"
#include "ops/common/backend_errors.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// Writes the messages for all ranks, this one included, each in a slot of `slot` bytes.
void encode_parts(const WireCodec& codec, const ReduceScatter& call, int64_t ranks, int64_t slot, uint8_t* messages) {
  const int64_t numel = call.shard.numel();
  if (numel % cpu::kWireGrain == 0) {  // cut() makes the same parts, which one kernel encodes.
    codec.encode_shards({}, {call.input, {0, call.input.numel()}}, {.shards = ranks, .left_out = ranks, .stride = slot},
                        messages);
    return;
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    codec.encode({}, {call.part_for(rank), {0, numel}}, messages + rank * slot);
  }
}

}  // namespace

void enqueue_reduce_scatter(const ReduceScatter& call, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const int64_t numel = call.shard.numel();
  if (numel == 0) {
    return;
  }
  const int64_t ranks = group->getSize();
  const std::unique_ptr<const WireCodec> codec = make_wire_codec(call.format, call.shard.device().type());
  const int64_t slot = slot_bytes(encoded_size(numel, call.format));
  at::Tensor sent = at::empty({ranks * slot}, call.shard.options().dtype(at::kByte));
  at::Tensor received = at::empty_like(sent);
  encode_parts(*codec, call, ranks, slot, sent.mutable_data_ptr<uint8_t>());
  std::vector<int64_t> sizes_sent(ranks, slot);
  std::vector<int64_t> sizes_received = sizes_sent;
  with_backend_errors(group->getRank(), std::string("all-to-all of shards of ") + kQuantizedReduceScatter,
                      [&] { libtorch::all_to_all_on_stream(group, received, sent, sizes_received, sizes_sent); });
  RankMessages parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(received.const_data_ptr<uint8_t>() + rank * slot);
  }
  codec->reduce(parts, {call.shard, {0, numel}}, call.reduction);
}

}  // namespace narrowcast::collectives

#include "ops/collectives/mean/stream_exchange.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "ops/backend_errors.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {

ShardMessages::ShardMessages(WireFormat format, int64_t numel, int64_t world_size)
    : format_(format), world_size_(world_size) {
  for (const Segment& shard : cut(numel, world_size)) {
    slot_bytes_ = std::max(slot_bytes_, collectives::slot_bytes(encoded_size(shard.numel, format_)));
  }
}

void ShardMessages::decode(const at::Tensor& messages, const at::Tensor& array) const {
  decode_shards(format_, messages.const_data_ptr<uint8_t>(), slots(), {array, {0, array.numel()}});
}

void CollectiveCalls::call(const std::string& what, const std::function<void()>& body) const {
  with_backend_errors(rank, what, [&] { order == nullptr ? body() : order->enqueue(device, body); });
}

OneLevelStreamExchange::OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               QuantizedMeanOptions options, CollectiveCalls collectives)
    : group_(std::move(group)),
      options_(std::move(options)),
      collectives_(std::move(collectives)),
      route_(options_.codec ? Route::kOneShot
                            : choose_route(options_.numel, world_size(), options_.format, options_.link)),
      codec_(options_.codec ? options_.codec(collectives_.device) : wire_codec(options_.format, rank())),
      shards_(cut(options_.numel, world_size())),
      shard_messages_(options_.format, options_.numel, world_size()) {}

int64_t OneLevelStreamExchange::payload_bytes() const {
  switch (route_) {
    case Route::kNowhere:
      return 0;
    case Route::kOneShot:
      return codec_->message_bytes({0, options_.numel}) * (world_size() - 1);
    case Route::kTwoShot: {
      int64_t bytes = message_bytes(shards_[rank()]) * (world_size() - 2);
      for (const Segment& shard : shards_) {
        bytes += message_bytes(shard);
      }
      return bytes;
    }
  }
  TORCH_CHECK_VALUE(false, "route ", static_cast<int>(route_), " is no Route");
}

// One shot:  the message that is sent, those of all ranks.
// Two shots: what is sent in the first hop and then all means, what is received in the first hop, the own mean.
int64_t OneLevelStreamExchange::workspace_bytes() const {
  if (options_.numel == 0 || route_ == Route::kNowhere) {
    return 0;
  }
  return route_ == Route::kOneShot ? whole_slot() * (world_size() + 1) : 2 * shard_messages_.bytes();
}

void OneLevelStreamExchange::enqueue(const MeanCall& call, const at::Tensor& workspace) {
  if (options_.numel == 0) {
    return;
  }
  if (route_ == Route::kOneShot) {
    one_shot(call, workspace);
  } else if (route_ == Route::kTwoShot) {
    const at::Tensor means = workspace.narrow(0, 0, shard_messages_.bytes());
    enqueue_undecoded(call, workspace, means);
    shard_messages_.decode(means, call.array);
  }
}

void OneLevelStreamExchange::one_shot(const MeanCall& call, const at::Tensor& workspace) {
  const Segment whole{0, options_.numel};
  const int64_t bytes = codec_->message_bytes(whole);
  at::Tensor sent = workspace.narrow(0, 0, whole_slot());
  at::Tensor received = workspace.narrow(0, whole_slot(), whole_slot() * world_size());
  codec_->encode(call, whole, sent.narrow(0, 0, bytes));
  collectives_.call(options_.all_gather.empty() ? "all-gather of messages of " + options_.name : options_.all_gather,
                    [&] { libtorch::all_gather_on_stream(group_, received, sent); });
  std::vector<at::Tensor> messages;
  for (int64_t sender = 0; sender < world_size(); ++sender) {
    messages.push_back(received.narrow(0, sender * whole_slot(), bytes));
  }
  codec_->average(call, whole, messages);
}

void OneLevelStreamExchange::enqueue_undecoded(const MeanCall& call, const at::Tensor& workspace, at::Tensor messages) {
  TORCH_INTERNAL_ASSERT(route_ == Route::kTwoShot, "only two shots encode means");
  const at::Tensor parts = exchange_parts(call, workspace);
  send_mean(call, parts, workspace, std::move(messages));
}

// Every rank sends whole slots: what is behind a shorter message is anything. Returns the other ranks' parts of the own
// shard, by rank.
at::Tensor OneLevelStreamExchange::exchange_parts(const MeanCall& call, const at::Tensor& workspace) {
  const int64_t bytes = shard_messages_.slot_bytes() * (world_size() - 1);
  at::Tensor sent = workspace.narrow(0, 0, bytes);
  at::Tensor received = workspace.narrow(0, shard_messages_.bytes(), bytes);
  encode_own_shards({options_.format, rank(), {0, options_.numel}}, call, shard_messages_.slots_without(rank()),
                    sent.mutable_data_ptr<uint8_t>());
  std::vector<int64_t> sizes_sent(world_size(), shard_messages_.slot_bytes());
  sizes_sent[rank()] = 0;
  std::vector<int64_t> sizes_received = sizes_sent;
  collectives_.call("all-to-all of shards of " + options_.name,
                    [&] { libtorch::all_to_all_on_stream(group_, received, sent, sizes_received, sizes_sent); });
  return received;
}

void OneLevelStreamExchange::send_mean(const MeanCall& call, const at::Tensor& parts, const at::Tensor& workspace,
                                       at::Tensor messages) {
  const int64_t slot = shard_messages_.slot_bytes();
  RankMessages by_rank;
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    const int64_t place = peer - (peer > rank() ? 1 : 0);
    by_rank.push_back(peer == rank() ? nullptr : parts.const_data_ptr<uint8_t>() + place * slot);
  }
  at::Tensor mean = workspace.narrow(0, 2 * shard_messages_.bytes() - slot, slot);
  encode_mean({options_.format, rank(), shards_[rank()]}, call, by_rank, mean.mutable_data_ptr<uint8_t>());
  collectives_.call("all-gather of means of " + options_.name,
                    [&] { libtorch::all_gather_on_stream(group_, messages, mean); });
}

}  // namespace narrowcast::collectives

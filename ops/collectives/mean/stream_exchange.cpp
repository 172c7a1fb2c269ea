#include "ops/collectives/mean/stream_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "ops/backend_errors.h"
#include "ops/collectives/mean/segment_codec.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {

at::Tensor message_buffer(int64_t bytes, at::Device device) {
  return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
}

ShardMessages::ShardMessages(WireFormat format, int64_t numel, int64_t world_size)
    : format_(format), world_size_(world_size) {
  for (const Segment& shard : cut(numel, world_size)) {
    slot_bytes_ = std::max(slot_bytes_, collectives::slot_bytes(encoded_size(shard.numel, format_)));
  }
}

void ShardMessages::decode(const uint8_t* messages, const at::Tensor& array) const {
  decode_shards(format_, messages, slots(), {array, {0, array.numel()}});
}

OneLevelStreamExchange::OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               QuantizedMeanOptions options, at::Device device)
    : group_(std::move(group)),
      options_(std::move(options)),
      route_(options_.codec ? Route::kOneShot
                            : choose_route(options_.numel, world_size(), options_.format, options_.link)),
      codec_(options_.codec ? options_.codec(device) : wire_codec(options_.format, rank())),
      shards_(cut(options_.numel, world_size())),
      shard_messages_(options_.format, options_.numel, world_size()) {
  if (route_ == Route::kTwoShot) {
    sent_ = message_buffer(shard_messages_.slot_bytes() * (world_size() - 1), device);
    received_ = message_buffer(sent_.numel(), device);
    mean_ = message_buffer(shard_messages_.slot_bytes(), device);
  } else if (route_ == Route::kOneShot && !options_.codec) {
    sent_ = message_buffer(slot_bytes(message_bytes({0, options_.numel})), device);
    received_ = message_buffer(sent_.numel() * world_size(), device);
  }
}

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

void OneLevelStreamExchange::enqueue(const MeanCall& call) {
  if (options_.numel == 0) {
    return;
  }
  if (route_ == Route::kOneShot) {
    one_shot(call);
  } else if (route_ == Route::kTwoShot) {
    two_shot(call);
  }
}

// A message of a wire format has its memory for good. Those of other codecs, which take one shot of any size, are
// allocated anew: the device's allocator keeps their memory at hand, for other buckets, too.
void OneLevelStreamExchange::one_shot(const MeanCall& call) {
  const Segment whole{0, options_.numel};
  const int64_t bytes = codec_->message_bytes(whole);
  at::Tensor sent = sent_.defined() ? sent_ : message_buffer(slot_bytes(bytes), call.array.device());
  at::Tensor received = received_.defined() ? received_ : at::empty({sent.numel() * world_size()}, sent.options());
  codec_->encode(call, whole, sent.narrow(0, 0, bytes));
  collective(options_.all_gather.empty() ? "all-gather of messages of " + options_.name : options_.all_gather,
             [&] { libtorch::all_gather_single(group_, received, sent)->wait(); });
  std::vector<at::Tensor> messages;
  for (int64_t sender = 0; sender < world_size(); ++sender) {
    messages.push_back(received.narrow(0, sender * sent.numel(), bytes));
  }
  codec_->average(call, whole, messages);
}

void OneLevelStreamExchange::two_shot(const MeanCall& call) {
  if (!means_.defined()) {
    means_ = message_buffer(shard_messages_.bytes(), call.array.device());
  }
  enqueue_undecoded(call, means_);
  shard_messages_.decode(means_.const_data_ptr<uint8_t>(), call.array);
}

void OneLevelStreamExchange::enqueue_undecoded(const MeanCall& call, at::Tensor messages) {
  TORCH_INTERNAL_ASSERT(route_ == Route::kTwoShot, "only two shots encode means");
  send_parts(call);
  send_mean(call, std::move(messages));
}

// Every rank sends whole slots: what is behind a shorter message is anything.
void OneLevelStreamExchange::send_parts(const MeanCall& call) {
  encode_own_shards({options_.format, rank(), {0, options_.numel}}, call, shard_messages_.slots_without(rank()),
                    sent_.mutable_data_ptr<uint8_t>());
  std::vector<int64_t> sizes_sent(world_size(), shard_messages_.slot_bytes());
  sizes_sent[rank()] = 0;
  std::vector<int64_t> sizes_received = sizes_sent;
  collective("all-to-all of shards of " + options_.name,
             [&] { libtorch::all_to_all_single(group_, received_, sent_, sizes_received, sizes_sent)->wait(); });
}

void OneLevelStreamExchange::send_mean(const MeanCall& call, at::Tensor messages) {
  RankMessages parts;
  const uint8_t* received = received_.const_data_ptr<uint8_t>();
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    parts.push_back(peer == rank() ? nullptr : received);
    received += peer == rank() ? 0 : shard_messages_.slot_bytes();
  }
  encode_mean({options_.format, rank(), shards_[rank()]}, call, parts, mean_.mutable_data_ptr<uint8_t>());
  collective("all-gather of means of " + options_.name,
             [&] { libtorch::all_gather_single(group_, messages, mean_)->wait(); });
}

void OneLevelStreamExchange::collective(const std::string& what, const std::function<void()>& body) const {
  with_backend_errors(options_.rank, what, body);
}

}  // namespace narrowcast::collectives

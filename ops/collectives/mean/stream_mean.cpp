#include "ops/collectives/mean/stream_mean.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "ops/backend_errors.h"
#include "ops/collectives/mean/segment_codec.h"
#include "ops/collectives/mean/wire_codec.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// Zeros, because the end of a shorter message is sent, too.
at::Tensor message_buffer(int64_t bytes, at::Device device) {
  return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
}

// Messages of an all-gather begin at multiples of that many bytes: NCCL copies single bytes where one does not.
constexpr int64_t kGatheredAlignment = 16;

int64_t gathered_bytes(int64_t bytes) {
  return (bytes + kGatheredAlignment - 1) / kGatheredAlignment * kGatheredAlignment;
}

}  // namespace

// One shot:  encode the array; all-gather the messages; average them.
// Two shots: encode all shards but the own; all-to-all; average the parts of the own shard with the own numbers and
//            encode the mean; all-gather the means; decode them.
class StreamExchange {
 public:
  // Of options.numel elements; options.exact are not its business.
  StreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, QuantizedMeanOptions options, at::Device device);

  int64_t payload_bytes() const;
  void enqueue(const MeanCall& call);

 private:
  int64_t rank() const { return group_->getRank(); }
  int64_t world_size() const { return group_->getSize(); }
  int64_t message_bytes(const Segment& segment) const { return encoded_size(segment.numel, options_.format); }
  // What this rank encodes in the first hop of two: all that comes before its own shard, and all that comes after.
  Segment before_own() const { return {0, shards_[rank()].begin}; }
  Segment after_own() const;
  void make_two_shot_buffers(at::Device device);
  void one_shot(const MeanCall& call);
  void two_shot(const MeanCall& call);
  void send_parts(const MeanCall& call);
  void send_mean(const MeanCall& call);
  void take_means(const MeanCall& call) const;
  void collective(const std::string& what, const std::function<void()>& body) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const QuantizedMeanOptions options_;
  const Route route_;
  const std::unique_ptr<MeanCodec> codec_;  // Of one shot.
  at::Tensor sent_;                         // First hop: this rank's parts for the other ranks; or its message for all.
  at::Tensor received_;                     // The other ranks' parts of the own shard; or all messages; by rank.
  // Of two shots:
  const std::vector<Segment> shards_;  // By rank.
  at::Tensor mean_;                    // Second hop: as long as the longest shard's message.
  at::Tensor means_;                   // By rank.
};

StreamExchange::StreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, QuantizedMeanOptions options,
                               at::Device device)
    : group_(std::move(group)),
      options_(std::move(options)),
      route_(options_.codec ? Route::kOneShot
                            : choose_route(options_.numel, world_size(), options_.format, options_.link)),
      codec_(options_.codec ? options_.codec(device) : wire_codec(options_.format, rank())),
      shards_(cut(options_.numel, world_size())) {
  if (route_ == Route::kTwoShot) {
    make_two_shot_buffers(device);
  } else if (route_ == Route::kOneShot && !options_.codec) {
    sent_ = message_buffer(gathered_bytes(message_bytes({0, options_.numel})), device);
    received_ = message_buffer(sent_.numel() * world_size(), device);
  }
}

Segment StreamExchange::after_own() const {
  const int64_t end = shards_[rank()].begin + shards_[rank()].numel;
  return {end, options_.numel - end};
}

void StreamExchange::make_two_shot_buffers(at::Device device) {
  sent_ = message_buffer(message_bytes(before_own()) + message_bytes(after_own()), device);
  received_ = message_buffer(message_bytes(shards_[rank()]) * (world_size() - 1), device);
  int64_t longest = 0;
  for (const Segment& shard : shards_) {
    longest = std::max(longest, message_bytes(shard));
  }
  mean_ = message_buffer(longest, device);
  means_ = message_buffer(longest * world_size(), device);
}

int64_t StreamExchange::payload_bytes() const {
  switch (route_) {
    case Route::kNowhere:
      return 0;
    case Route::kOneShot:
      return codec_->message_bytes({0, options_.numel}) * (world_size() - 1);
    case Route::kTwoShot:
      return sent_.numel() + mean_.numel() * (world_size() - 1);
  }
  TORCH_CHECK_VALUE(false, "route ", static_cast<int>(route_), " is no Route");
}

void StreamExchange::enqueue(const MeanCall& call) {
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
void StreamExchange::one_shot(const MeanCall& call) {
  const Segment whole{0, options_.numel};
  const int64_t bytes = codec_->message_bytes(whole);
  at::Tensor sent = sent_.defined() ? sent_ : message_buffer(gathered_bytes(bytes), call.array.device());
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

void StreamExchange::two_shot(const MeanCall& call) {
  send_parts(call);
  send_mean(call);
  take_means(call);
}

void StreamExchange::send_parts(const MeanCall& call) {
  uint8_t* message = sent_.mutable_data_ptr<uint8_t>();
  for (const Segment& segment : {before_own(), after_own()}) {
    encode_own({options_.format, rank(), segment}, call, message);
    message += message_bytes(segment);
  }
  std::vector<int64_t> sizes_sent;
  std::vector<int64_t> sizes_received;
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    sizes_sent.push_back(peer == rank() ? 0 : message_bytes(shards_[peer]));
    sizes_received.push_back(peer == rank() ? 0 : message_bytes(shards_[rank()]));
  }
  collective("all-to-all of shards of " + options_.name,
             [&] { libtorch::all_to_all_single(group_, received_, sent_, sizes_received, sizes_sent)->wait(); });
}

void StreamExchange::send_mean(const MeanCall& call) {
  const Segment& own = shards_[rank()];
  RankMessages parts;
  const uint8_t* received = received_.const_data_ptr<uint8_t>();
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    parts.push_back(peer == rank() ? nullptr : received);
    received += peer == rank() ? 0 : message_bytes(own);
  }
  encode_mean({options_.format, rank(), own}, call, parts, mean_.mutable_data_ptr<uint8_t>());
  collective("all-gather of means of " + options_.name,
             [&] { libtorch::all_gather_single(group_, means_, mean_)->wait(); });
}

// Shards whose messages follow each other without a gap are decoded as one.
void StreamExchange::take_means(const MeanCall& call) const {
  for (int64_t first = 0; first < world_size();) {
    Segment segment = shards_[first];
    int64_t next = first + 1;
    while (next < world_size() && message_bytes(shards_[next - 1]) == mean_.numel()) {
      segment.numel += shards_[next++].numel;
    }
    decode_segment(options_.format, means_.const_data_ptr<uint8_t>() + first * mean_.numel(), {call.array, segment});
    first = next;
  }
}

void StreamExchange::collective(const std::string& what, const std::function<void()>& body) const {
  with_backend_errors(rank(), what, body);
}

StreamMean::StreamMean(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const QuantizedMeanOptions& options,
                       at::Device device)
    : exact_(options.exact, device),
      narrow_(std::make_unique<StreamExchange>(group, options, device)),
      exact_exchange_(std::make_unique<StreamExchange>(group,
                                                       QuantizedMeanOptions{.name = options.name,
                                                                            .numel = exact_.values().numel(),
                                                                            .format = WireFormat::kFp32,
                                                                            .link = options.link},
                                                       device)) {}

StreamMean::~StreamMean() = default;

int64_t StreamMean::payload_bytes() const { return narrow_->payload_bytes() + exact_exchange_->payload_bytes(); }

void StreamMean::enqueue(const MeanCall& call) {
  exact_.take_from(call.array);
  exact_exchange_->enqueue({exact_.values(), {}, {}});
  narrow_->enqueue(call);
  exact_.put_back(call.array);
}

}  // namespace narrowcast::collectives

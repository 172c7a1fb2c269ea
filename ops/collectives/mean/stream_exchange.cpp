#include "ops/collectives/mean/stream_exchange.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/backend_errors.h"
#include "ops/collectives/wire/run_codec.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {
namespace {

// Zeros, because the end of a shorter message is sent, too.
at::Tensor message_buffer(int64_t bytes, at::Device device) {
  return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
}

float* advanced(float* residual, int64_t elements) { return residual == nullptr ? nullptr : residual + elements; }

}  // namespace

StreamExchange::StreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, Options options, at::Device device)
    : group_(std::move(group)),
      options_(std::move(options)),
      route_(choose_route(options_.numel, world_size(), options_.format, options_.link)),
      shards_(cut(options_.numel, world_size())) {
  if (route_ == Route::kOneShot) {
    make_one_shot_buffers(device);
  } else if (route_ == Route::kTwoShot) {
    make_two_shot_buffers(device);
  }
}

int64_t StreamExchange::message_bytes(const Segment& segment) const {
  return encoded_size(segment.numel, options_.format);
}

Segment StreamExchange::before_own() const { return {0, shards_[rank()].begin}; }

Segment StreamExchange::after_own() const {
  const int64_t end = shards_[rank()].begin + shards_[rank()].numel;
  return {end, options_.numel - end};
}

void StreamExchange::make_one_shot_buffers(at::Device device) {
  const int64_t bytes = encoded_size(options_.numel, options_.format);
  sent_ = message_buffer(bytes, device);
  received_ = message_buffer(bytes * world_size(), device);
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
      return sent_.numel() * (world_size() - 1);
    case Route::kTwoShot:
      return sent_.numel() + mean_.numel() * (world_size() - 1);
  }
  return 0;
}

void StreamExchange::enqueue(const MeanCall& call) {
  if (route_ == Route::kOneShot) {
    one_shot(call);
  } else if (route_ == Route::kTwoShot) {
    two_shot(call);
  }
}

void StreamExchange::one_shot(const MeanCall& call) {
  const Segment whole{0, options_.numel};
  encode_segment({options_.format, rounding_of(call.rounding, rank(), 0)}, {call.array, whole, call.residuals.own},
                 sent_.mutable_data_ptr<uint8_t>());
  collective("all-gather of messages", [&] { libtorch::all_gather_single(group_, received_, sent_)->wait(); });
  RankMessages messages;
  for (int64_t sender = 0; sender < world_size(); ++sender) {
    messages.push_back(received_.const_data_ptr<uint8_t>() + sender * sent_.numel());
  }
  average_segments(options_.format, messages, {call.array, whole});
}

void StreamExchange::two_shot(const MeanCall& call) {
  send_parts(call);
  send_mean(call);
  take_means(call);
}

void StreamExchange::send_parts(const MeanCall& call) {
  const codec::wire::Rounding rounding = rounding_of(call.rounding, rank(), 0);
  uint8_t* message = sent_.mutable_data_ptr<uint8_t>();
  for (const Segment& segment : {before_own(), after_own()}) {
    encode_segment({options_.format, rounding.at(segment.begin)},
                   {call.array, segment, advanced(call.residuals.own, segment.begin)}, message);
    message += message_bytes(segment);
  }
  std::vector<int64_t> sizes_sent;
  std::vector<int64_t> sizes_received;
  for (int64_t peer = 0; peer < world_size(); ++peer) {
    sizes_sent.push_back(peer == rank() ? 0 : message_bytes(shards_[peer]));
    sizes_received.push_back(peer == rank() ? 0 : message_bytes(shards_[rank()]));
  }
  collective("all-to-all of shards",
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
  const codec::wire::Rounding rounding = rounding_of(call.rounding, rank(), 1).at(own.begin);
  average_and_encode_segments({options_.format, rounding}, parts,
                              {call.array, own, advanced(call.residuals.own, own.begin)}, call.residuals.mean,
                              mean_.mutable_data_ptr<uint8_t>());
  collective("all-gather of means", [&] { libtorch::all_gather_single(group_, means_, mean_)->wait(); });
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

void StreamExchange::collective(const char* what, const std::function<void()>& body) const {
  with_backend_errors(rank(), c10::str(what, " of ", options_.name), body);
}

}  // namespace narrowcast::collectives

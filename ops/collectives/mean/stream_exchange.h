// The mean of one array where the hardware keeps the order: kernels and collectives are enqueued on a stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/mean/quantized_mean_job.h"
#include "ops/collectives/mean/segment_codec.h"
#include "ops/collectives/mean/segments.h"
#include "ops/collectives/mean/stream_groups.h"

namespace narrowcast::collectives {

// Messages begin at multiples of so many bytes, a line of a GPU's cache, in all that travels: NCCL copies single bytes
// where one begins at no multiple of 16.
inline constexpr int64_t kSlotBytes = 128;

// The bytes of a message and of what is behind it up to the next one.
constexpr int64_t slot_bytes(int64_t bytes) { return (bytes + kSlotBytes - 1) / kSlotBytes * kSlotBytes; }

// Messages of two shots side by side, one for the shard of each rank, each in a slot that would hold the longest.
class ShardMessages {
 public:
  // Of an array of `numel` elements.
  ShardMessages(WireFormat format, int64_t numel, int64_t world_size);

  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t bytes() const { return slot_bytes_ * world_size_; }

  // All of them, or all but one rank's.
  ShardSlots slots() const { return slots_without(world_size_); }
  ShardSlots slots_without(int64_t rank) const { return {world_size_, rank, slot_bytes_}; }

  // Writes what they say to `array`, [numel].
  void decode(const at::Tensor& messages, const at::Tensor& array) const;

 private:
  const WireFormat format_;
  const int64_t world_size_;
  int64_t slot_bytes_ = 0;
};

// How the exchanges of a StreamMean call collectives.
struct CollectiveCalls {
  int64_t rank = 0;  // As errors name it.
  at::Device device = at::kCPU;
  std::shared_ptr<CollectiveOrder> order = nullptr;  // Null where one stream calls all.

  // Calls body(), which is collective `what`. c10::DistBackendError if that throws.
  void call(const std::string& what, const std::function<void()>& body) const;
};

// The part of a StreamMean that concerns one array.
class StreamExchange {
 public:
  virtual ~StreamExchange() = default;

  // As StreamMean's.
  virtual int64_t payload_bytes() const = 0;

  // Bytes of memory that a call needs for as long as it is enqueued.
  virtual int64_t workspace_bytes() const = 0;

  // As StreamMean's. `workspace`: uint8, at least workspace_bytes(), on the device, which begins where a slot may.
  virtual void enqueue(const MeanCall& call, const at::Tensor& workspace) = 0;
};

// In one level, between the ranks of `group`:
// One shot:  encode the array; all-gather the messages; average them.
// Two shots: encode all shards but the own; all-to-all; average the parts of the own shard with the own numbers and
//            encode the mean; all-gather the means; decode them.
class OneLevelStreamExchange final : public StreamExchange {
 public:
  // An exchange of options.numel elements. Which rank this is, the group says. options.exact and options.nodes are not
  // its business.
  OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, QuantizedMeanOptions options,
                         CollectiveCalls collectives);

  Route route() const { return route_; }
  int64_t payload_bytes() const override;
  int64_t workspace_bytes() const override;
  void enqueue(const MeanCall& call, const at::Tensor& workspace) override;

  // With two shots, instead of `enqueue`: takes all but the last step. `messages`, uint8 [ShardMessages::bytes], gets
  // the means.
  void enqueue_undecoded(const MeanCall& call, const at::Tensor& workspace, at::Tensor messages);

 private:
  int64_t rank() const { return group_->getRank(); }
  int64_t world_size() const { return group_->getSize(); }
  int64_t message_bytes(const Segment& segment) const { return encoded_size(segment.numel, options_.format); }
  // The slot of one shot's message.
  int64_t whole_slot() const { return slot_bytes(codec_->message_bytes({0, options_.numel})); }
  void one_shot(const MeanCall& call, const at::Tensor& workspace);
  at::Tensor exchange_parts(const MeanCall& call, const at::Tensor& workspace);
  void send_mean(const MeanCall& call, const at::Tensor& parts, const at::Tensor& workspace, at::Tensor messages);

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const QuantizedMeanOptions options_;
  const CollectiveCalls collectives_;
  const Route route_;
  const std::unique_ptr<MeanCodec> codec_;  // For one shot.
  // These are for two shots:
  const std::vector<Segment> shards_;  // By rank.
  const ShardMessages shard_messages_;
};

}  // namespace narrowcast::collectives

// One array's part of a StreamMean.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ops/collectives/mean/cost_model.h"
#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/wire/run.h"

namespace narrowcast::collectives {

// One shot:  encode the array; all-gather the messages; average them.
// Two shots: encode all shards but the own; all-to-all; average the parts of the own shard with the own numbers and
//            encode the mean; all-gather the means; decode them.
class StreamExchange {
 public:
  struct Options {
    std::string name;  // In errors.
    int64_t numel = 0;
    WireFormat format = WireFormat::kFp32;
    LinkCost link = {};
  };
  StreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, Options options, at::Device device);

  int64_t payload_bytes() const;
  void enqueue(const MeanCall& call);

 private:
  int64_t rank() const { return group_->getRank(); }
  int64_t world_size() const { return group_->getSize(); }
  int64_t message_bytes(const Segment& segment) const;
  // What this rank encodes in the first hop of two: all that comes before its own shard, and all that comes after.
  Segment before_own() const;
  Segment after_own() const;
  void make_one_shot_buffers(at::Device device);
  void make_two_shot_buffers(at::Device device);
  void one_shot(const MeanCall& call);
  void two_shot(const MeanCall& call);
  void send_parts(const MeanCall& call);
  void send_mean(const MeanCall& call);
  void take_means(const MeanCall& call) const;
  void collective(const char* what, const std::function<void()>& body) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const Options options_;
  const Route route_;
  const std::vector<Segment> shards_;  // By rank.
  at::Tensor sent_;                    // First hop: this rank's message or, of two, its parts for the other ranks.
  at::Tensor received_;                // All messages, or the other ranks' parts of the own shard; by rank.
  at::Tensor mean_;                    // Second hop: as long as the longest shard's message.
  at::Tensor means_;                   // By rank.
};

}  // namespace narrowcast::collectives

// Hooks that average encoded buckets: PyTorch's reference hooks with 8-bit codes, and quantized_allreduce in wire
// formats.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/quantized/error_feedback.h"
#include "hooks/row/bucket.h"
#include "hooks/row/execution.h"
#include "hooks/row/hook_row.h"
#include "hooks/row/levels.h"
#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::hooks {

// Replaces each bucket by its mean over the ranks (ops/collectives/all_reduce). CPU buckets use the engine of the
// process group, GPU buckets two separate streams. Takes contiguous buckets of any floating dtype; others are a
// c10::ValueError or c10::TypeError.
class EncodedAllReduceHook : public TableHook {
 public:
  // `codec`: null for the wire format of the options; the constructor is then a collective.
  EncodedAllReduceHook(const HookRow& row, const HookOptions& options, collectives::AllReduceCodecFactory codec);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  std::string nodes() const override;
  // On the CPU, in a wire format.
  std::vector<int64_t> average_shards(std::optional<ShardRounding> rounding) override;

 protected:
  // Returns the call for the next bucket, immediately before it starts. `parameters` is empty unless the wire options
  // need it.
  virtual collectives::AllReduceCall make_call(const c10d::GradBucket& bucket, const ParameterRanges& parameters);

  const WireOptions& wire_options() const { return options_.wire; }
  // The nodes over which this hook averages; one level if there is a codec.
  const node::NodeLayout& layout() const { return nodes_->layout; }
  // Calls body() between steps, on the device of `tensor`. It may use the state of any bucket.
  void run_between_steps(const at::Tensor& tensor, const std::function<void()>& body);

  // Not used with a codec.
  const RouteLink& link() const { return link_; }
  RouteLink& link() { return link_; }

 private:
  using Future = c10::ivalue::Future;
  // State of a bucket on the CPU, kept from step to step.
  struct Scratch {
    engine::Engine* engine = nullptr;  // That of engine_.
    std::shared_ptr<collectives::AllReduceJob> job;
    ExchangedBytes bytes;
    LastExchange last;
  };
  // State of a bucket on a GPU, kept likewise.
  struct StreamScratch {
    std::unique_ptr<collectives::StreamAllReduce> mean;
    ExchangedBytes bytes;
  };
  c10::intrusive_ptr<Future> run_on_engine(const c10d::GradBucket& bucket, const ParameterRanges& parameters);
  c10::intrusive_ptr<Future> run_on_stream(const c10d::GradBucket& bucket, const ParameterRanges& parameters);
  int64_t message_bytes(int64_t numel, const std::vector<collectives::ElementRange>& exact) const;
  std::vector<collectives::ElementRange> exact_ranges(const ParameterRanges& parameters) const;
  collectives::AllReduceJobOptions job_options(const c10d::GradBucket& bucket,
                                               std::vector<collectives::ElementRange> exact) const;
  Scratch& scratch_of(const c10d::GradBucket& bucket, const ParameterRanges& parameters);
  StreamScratch& stream_scratch_of(const c10d::GradBucket& bucket, const ParameterRanges& parameters);

  const HookOptions options_;
  const collectives::AllReduceCodecFactory codec_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  RouteLink link_;
  CpuEngine engine_;
  const collectives::JobMemory memory_;
  PerBucket<Scratch> scratch_;
  collectives::Result result_ = collectives::Result::kWhole;
  // For buckets on a GPU:
  HookStreams streams_;
  std::array<std::shared_ptr<collectives::StreamWorkspace>, HookStreams::kCount> workspaces_;
  const std::shared_ptr<collectives::CollectiveOrder> order_ = std::make_shared<collectives::CollectiveOrder>();
  const std::shared_ptr<const collectives::StreamGroups> groups_;  // Null for one level.
  PerBucket<StreamScratch> stream_scratch_;
  NewBuckets new_buckets_;
};

// "quantize_per_tensor": every rank sends its bucket in uint8 with one scale and zero point, and averages the messages
// of all ranks. Bit for bit the result of PyTorch's quantization_pertensor_hook, rounded once to the bucket's dtype.
// Payload per peer: numel + 8 bytes; nothing for an empty bucket.
std::unique_ptr<CommHook> make_quantize_per_tensor_hook(const HookRow& row, const HookOptions& options);

// "quantize_per_channel": the same with a scale and zero point for each channel of options.channel_size elements; the
// last channel of a bucket may have fewer. Bit for bit the result of PyTorch's quantization_perchannel_hook with that
// bucket_size, rounded once to the bucket's dtype. Payload per peer: numel + 8 * ceil(numel / channel_size) bytes.
std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookRow& row, const HookOptions& options);

// "quantized_allreduce": averages buckets in a wire format (docs/reference/wire-format.md), in one or two hops. It
// sends the same fraction of float32's bytes for any number of ranks. With one rank a bucket stays unchanged. The table
// (hooks/table/hook_table.h) has its other names and their formats.
class QuantizedAllReduceHook final : public EncodedAllReduceHook {
 public:
  // The options must contain a format.
  QuantizedAllReduceHook(const HookRow& row, const HookOptions& options);

  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;
  void rescale_state(double factor) override;

 private:
  collectives::AllReduceCall make_call(const c10d::GradBucket& bucket, const ParameterRanges& parameters) override;

  static constexpr int64_t kAfterAllBuckets = std::numeric_limits<int64_t>::max();

  ErrorFeedback feedback_;
  uint64_t step_ = 0;  // Steps whose first bucket of this hook has come.
  int64_t last_bucket_ = kAfterAllBuckets;
};

}  // namespace narrowcast::hooks

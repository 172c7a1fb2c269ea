// The quantised all-reduce as a job of an engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// Message buffers. One user shares them among all the jobs that it makes for one engine.
struct JobMemory {
  std::shared_ptr<MessageMemory> narrow = std::make_shared<MessageMemory>();
  std::shared_ptr<MessageMemory> exact = std::make_shared<MessageMemory>();
};

struct AllReduceJobOptions {
  std::string name = {};  // The exchange's name in errors.
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t numel = 0;  // The array's.
  WireFormat format = WireFormat::kFp32;
  // If set, the codec replaces `format`: the array is then averaged in one shot, also with a single rank.
  AllReduceCodecFactory codec = nullptr;
  // Name of the one-shot all-gather in errors on a stream; "all-gather of messages of NAME" if this is empty.
  std::string all_gather = {};
  std::vector<ElementRange> exact = {};  // See ExactElements.
  LinkCost link = {};
  // On a stream: an array whose message has at least twice this number of bytes is sent in chunks (shard_messages.h).
  int64_t least_chunk_bytes = int64_t{4} << 20;
  // Null, or without memory: one level.
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;
  // Not kWhole only on the CPU, without a `codec`. All ranks get the exact elements in any case.
  Result result = Result::kWhole;
};

// Replaces a 1-D array, or this rank's shard of it, by its mean over the ranks. With one rank the array changes only if
// there is a codec, which encodes and decodes it.
class NARROWCAST_EXPORT AllReduceJob final : public engine::Job {
 public:
  // Memory that the jobs of a group's engine share, those of other collectives too (MessageMemory::of).
  static JobMemory memory_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  AllReduceJob(AllReduceJobOptions options, const JobMemory& memory);
  ~AllReduceJob() override;
  AllReduceJob(const AllReduceJob&) = delete;
  AllReduceJob& operator=(const AllReduceJob&) = delete;

  // The array that the next submission averages, in place.
  void set_call(AllReduceCall call) { call_ = std::move(call); }

  int64_t numel() const { return options_.numel; }
  WireFormat format() const { return options_.format; }
  const std::shared_ptr<const node::FoundNodes>& nodes() const { return options_.nodes; }
  const std::vector<ElementRange>& exact() const { return options_.exact; }

  // Bytes that this rank sends per submission, to all peers together.
  int64_t payload_bytes() const { return payload_bytes_; }

  std::string name() const override { return options_.name; }
  int64_t advances() const override;
  bool is_ready() override;
  void prepare() override;
  void cancel() override;
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;
  void give_up() override;

 private:
  const AllReduceJobOptions options_;
  const std::unique_ptr<AllReduceExchange> narrow_;
  ExactElements exact_;
  const std::unique_ptr<AllReduceExchange> exact_exchange_;  // Null without exact elements.
  const int64_t payload_bytes_;
  AllReduceCall call_;
  int64_t advanced_ = 0;
};

}  // namespace narrowcast::collectives

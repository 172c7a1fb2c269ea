// An array of numbers that ranks replace by its mean, in one job of the engine among others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// Float64 as it is; the mean is a sum in the order of ranks, divided by their number. On any device.
std::unique_ptr<AllReduceCodec> float64_codec();

// What an exchange's rounding takes from the mean of an array.
class LostInRounding {
 public:
  // Ranks exchange arrays like `array` in `format` over `layout`; this is one of them.
  LostInRounding(node::NodeLayout layout, int64_t rank, const at::Tensor& array, WireFormat format);

  // Residuals for the exchange that comes: nothing of what came before is fed back there.
  Residuals take_all() const;

  // What the exchange has lost, as a part of this rank's own numbers, of the array's sizes, dtype and device.
  at::Tensor in_own_numbers() const;

 private:
  const node::NodeLayout layout_;
  const ElementOrder order_;
  const SentParts parts_;
  const at::Tensor like_;
  const at::Tensor own_;   // float32
  const at::Tensor mean_;  // float32
};

struct AllReduceArrayOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;  // float32, or float64: then the format is fp32, but sends float64
  WireFormat format = WireFormat::kFp32;
  bool keeps_lost = false;  // whether lost() is wanted
  int64_t array = 0;        // 0 or 1: which one of a job's arrays
  LinkCost link = {};
  // Null, or without memory: one level. Float64 goes in one level.
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;
};

// The array, and its exchange: the functions are called as those of an AllReduceExchange, but for start, which may be
// called in any advance of the job that waits for what others do in an earlier one.
class AllReduceArray {
 public:
  AllReduceArray(const AllReduceArrayOptions& options, std::shared_ptr<MessageMemory> memory);

  // [numel]: what this rank has, from finish on the mean.
  const at::Tensor& values() const { return values_; }

  int64_t payload_bytes() const { return exchange_->payload_bytes(); }
  int64_t advances() const { return exchange_->advances(); }
  bool is_ready() const { return exchange_->is_ready(); }
  bool has_levels() const { return has_levels_; }
  void post_receives(engine::Transport& transport) { exchange_->post_receives(transport); }
  void start(engine::Transport& transport);
  void advance(engine::Transport& transport) { exchange_->advance(transport); }
  void finish(engine::Transport& transport) { exchange_->finish(transport); }

  // What the format's rounding took from the mean, after finish: [numel], as a part of this rank's own numbers. Nothing
  // is lost in fp32, and the tensor undefined; so it is where it is not wanted.
  at::Tensor lost() const { return lost_ ? lost_->in_own_numbers() : at::Tensor(); }

 private:
  const AllReduceArrayOptions options_;
  const bool has_levels_;
  const at::Tensor values_;
  const std::unique_ptr<AllReduceExchange> exchange_;
  std::optional<LostInRounding> lost_;
};

}  // namespace narrowcast::collectives

// An array that ranks replace by its mean, as one part of an engine's job.
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

// Sends float64 unchanged. The mean is the sum in the order of ranks, divided by their number. For any device.
std::unique_ptr<AllReduceCodec> float64_codec();

// The rounding error of an exchange.
class LostInRounding {
 public:
  // For exchanges of arrays like `array` in `format` over `layout`; this is rank `rank`.
  LostInRounding(node::NodeLayout layout, int64_t rank, const at::Tensor& array, WireFormat format);

  // Residuals for the next exchange, set to zero: no earlier rounding error is fed back.
  Residuals take_all() const;

  // The rounding error of the exchange, expressed as an error of this rank's own numbers. It has the array's sizes,
  // dtype and device.
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
  at::ScalarType dtype = at::kFloat;  // float32 or float64; float64 is sent unrounded, and `format` must be kFp32
  WireFormat format = WireFormat::kFp32;
  bool keeps_lost = false;  // whether lost() is wanted
  int64_t array = 0;        // 0 or 1: which one of a job's arrays
  LinkCost link = {};
  // Null, or without memory: one level. Float64 always uses one level.
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;
};

// The array and its exchange. The functions are called like those of an AllReduceExchange, except start: it may also be
// called in an advance, if that waits for other ranks' earlier work.
class AllReduceArray {
 public:
  AllReduceArray(const AllReduceArrayOptions& options, std::shared_ptr<MessageMemory> memory);

  // [numel]: this rank's values; after finish, the mean.
  const at::Tensor& values() const { return values_; }

  int64_t payload_bytes() const { return payload_bytes_; }
  int64_t advances() const { return exchange_->advances(); }
  bool is_ready() const { return exchange_->is_ready(); }
  void post_receives(engine::Transport& transport) { exchange_->post_receives(transport); }
  void start(engine::Transport& transport);
  void advance(engine::Transport& transport) { exchange_->advance(transport); }
  void finish(engine::Transport& transport) { exchange_->finish(transport); }
  void give_up() { exchange_->give_up(); }

  // The format's rounding error after finish: [numel], expressed as an error of this rank's own numbers. Undefined for
  // fp32, and if keeps_lost is false.
  at::Tensor lost() const { return lost_ ? lost_->in_own_numbers() : at::Tensor(); }

 private:
  const AllReduceArrayOptions options_;
  const at::Tensor values_;
  const std::unique_ptr<AllReduceExchange> exchange_;
  const int64_t payload_bytes_;
  std::optional<LostInRounding> lost_;
};

}  // namespace narrowcast::collectives

// What every communication hook of the project has in common.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/hook_state.h>

namespace narrowcast::hooks {

// A DDP communication hook: given a bucket of this rank's gradients it returns a
// future of the bucket averaged over the ranks, in the bucket's dtype and shape.
// runHook is called on the thread of the backward pass, for the buckets in the
// same order on all ranks, and must not block on other ranks.
class NARROWCAST_EXPORT CommHook : public c10d::CommHookInterface {
 public:
  // The name by which the factory creates this hook.
  virtual std::string_view name() const = 0;

  // Bytes of payload this rank has handed to the network since the hook was
  // made: gradients, codes and scales, without the transport's own framing.
  // Where LibTorch chooses the algorithm, what a ring all-reduce sends.
  int64_t payload_bytes_sent() const { return payload_bytes_sent_.load(std::memory_order_relaxed); }

  // What the bits of later steps depend on, on this rank, and its counters; asked for between steps. A hook with state
  // of its own adds it to what it inherits. `parameters` are those whose gradients the buckets hold.
  virtual HookState state(const std::vector<NamedParameter>& parameters) const;

  // Takes such state up, before the first step. Throws CorruptInputError naming what is missing or does not fit.
  virtual void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

  // Whether all ranks end a step with the same gradients, and so with the same parameters.
  virtual bool keeps_replicas_equal() const { return true; }

  // Takes a future's value, a tensor or a list of one tensor.
  at::Tensor parseHookResult(const c10::IValue& result) override;

 protected:
  // Thread-safe: futures may complete on other threads.
  void count_payload(int64_t bytes) { payload_bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> payload_bytes_sent_{0};
};

// Bytes each rank sends when `payload_bytes` are all-reduced in a ring of
// `world_size` ranks: 2 (W - 1) / W times the payload, rounded up.
NARROWCAST_EXPORT int64_t ring_all_reduce_bytes(int64_t payload_bytes, int64_t world_size);

}  // namespace narrowcast::hooks

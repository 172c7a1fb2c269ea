// The interface of all communication hooks, and their state over a restart of the training.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/export.h>

namespace narrowcast {
namespace NARROWCAST_EXPORT hooks {

// A parameter or another tensor of a module, with the name under which its state is saved.
struct NamedParameter {
  std::string name;   // name in the module, e.g. "layers.0.weight"
  at::Tensor tensor;  // of any shape, dtype and device; the module's own, not a copy
};

// Tensors by name, on any device. Each hook chooses its names.
using HookState = std::map<std::string, at::Tensor>;

// The state of an earlier run, as one rank of the resumed run gets it. The two worlds may differ in size. Rank r of W
// gets the states of former ranks r, r + W, r + 2 W, ..., so each former state has exactly one new rank. With the same
// world size every rank gets its own state. In a smaller world some ranks get several; in a larger one the last ranks
// get none. A rank whose process was lost and replaced gets none either, in a world of the same size.
struct FormerRanks {
  int64_t world_size = 1;         // number of former ranks
  std::vector<HookState> states;  // of this rank's former ranks, in ascending order
  HookState first;                // of former rank 0, or of another one that lives, if `states` is empty

  // The state of the former rank with this rank's number; of former rank 0 if there was no such rank.
  const HookState& own() const { return states.empty() ? first : states[0]; }
};

// A 64-bit integer as a 0-dimensional tensor.
inline at::Tensor int_tensor(int64_t value) { return at::full({}, value, at::kLong); }

// The integer of that name. CorruptInputError if it is missing or not an integer; the message names it.
inline int64_t int_of(const HookState& state, const std::string& name) {
  const auto found = state.find(name);
  NARROWCAST_CHECK_INPUT(found != state.end(), "the hook's state lacks '", name, "'");
  NARROWCAST_CHECK_INPUT(found->second.scalar_type() == at::kLong && found->second.numel() == 1, "the hook's state '",
                         name, "' is not an integer");
  return found->second.item<int64_t>();
}

// The entries whose names begin with `prefix`, with the prefix removed.
HookState part_of(const HookState& state, const std::string& prefix);
FormerRanks part_of(const FormerRanks& saved, const std::string& prefix);  // does so in all its states

// Bytes of one bucket's all-reduce.
struct ExchangedBytes {
  int64_t payload = 0;  // bytes that this rank sends, to all peers and in all hops
  int64_t message = 0;  // bytes of one encoded bucket: codes and scales, or factors
};

// How CommHook::average_shards rounds the means of shards.
enum class ShardRounding {
  kOnce,     // only what other ranks send
  kAsWhole,  // as without average_shards: the elements get the same bits, except in variable formats
};

// A DDP communication hook. Given a bucket of this rank's gradients it returns a future of the bucket averaged over the
// ranks, in the bucket's dtype and shape.
//
// Threads: runHook is called on the thread of the backward pass. It must not block on other ranks, with one exception:
// while a bucket of the same number is in flight, it may wait for the future of that bucket. A callback of a future
// must not block on other ranks, nor call runHook. All other functions are called between steps, by one thread at a
// time, except payload_bytes_sent(), which any thread may call at any time. A future may be completed on any thread.
//
// Order: runHook is called for the buckets in the same order on all ranks. It must start its exchanges, or submit them
// to a queue that keeps their order, before it returns: then all ranks have the same order of exchanges. Futures may be
// completed in any order.
//
// Life time: a hook is made after its process group. It is destroyed after its last future is complete, and before the
// group; a future's callback must not own the hook. The bucket passed to runHook lives until runHook returns, its
// tensor until the future is complete.
//
// Errors: an exception that runHook throws, or that its future holds, ends the backward pass on this rank. A failed
// peer or network is a c10::DistBackendError naming this rank; see narrowcast/errors.h for the others. A future that is
// not complete within the process group's timeout also ends the pass (DistributedDataParallel).
//
// Versions: a custom hook is compiled against the headers of the library that it is linked with. The library's soname
// contains the major version. A function that a minor version adds here has a default implementation. A hook compiled
// with an earlier version may have to be recompiled. Every hook must read state of a former version, or reject it with
// a CorruptInputError.
class CommHook : public c10d::CommHookInterface {
 public:
  // The name that create_comm_hook takes for this hook.
  virtual std::string_view name() const = 0;

  // Payload bytes that this rank has sent since the hook was made: gradients, codes and scales, without the transport's
  // framing. If LibTorch chooses the algorithm, the bytes of a ring all-reduce are counted.
  int64_t payload_bytes_sent() const { return payload_bytes_sent_.load(std::memory_order_relaxed); }

  // Compression ratio: float32 bytes of the buckets divided by the bytes of their last encoded messages. Hops and ranks
  // do not count. Empty until something was sent, and for hooks that only count their payload.
  virtual std::optional<double> compression() const;

  // State that determines the bits of later steps on this rank, and counters. A hook with additional state adds it to
  // the inherited state. The buckets hold the gradients of `parameters`; c10::ValueError if one with state is missing.
  virtual HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from saved state, before the first step. Throws CorruptInputError naming the entry that is missing or does
  // not fit, and c10::ValueError for state of parameters that are not given.
  virtual void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

  // Multiplies state that depends on earlier gradients, such as residuals, by a positive factor. Called on all ranks
  // when the loss scale changes; the factor is the new scale divided by the old one.
  virtual void rescale_state(double /*factor*/) {}

  // For a sharded optimizer, between steps, on all ranks: from now on a future's value needs the mean only in this
  // rank's shard of the bucket, and may have anything in other elements. Without a rounding it needs all again. Returns
  // the node of each rank, the same on all ranks: shards follow from these nodes (ShardedOptimizer). Empty if the hook
  // averages all elements in any case. Throws c10::ValueError for an option of the hook that excludes shards; without
  // a rounding it must not throw.
  virtual std::vector<int64_t> average_shards(std::optional<ShardRounding> /*rounding*/) { return {}; }

  // Whether all ranks end a step with the same gradients, and so with the same parameters.
  virtual bool keeps_replicas_equal() const { return true; }

  // Group number of each rank, if the hook averages in groups of ranks now or later; else empty.
  virtual std::vector<int64_t> groups() const { return {}; }

  // Nodes and ranks per node, as "2 x 4", or "3 + 1" if nodes differ. If the ranks of a node cannot share memory, the
  // reason follows in brackets. Empty if the hook does not use nodes.
  virtual std::string nodes() const { return {}; }

  // One line: the hooks chosen for each bucket size, and why. Empty if the hook does not choose between others.
  virtual std::string decision() const { return {}; }

  // Predicted seconds to average a float32 bucket of `numel` elements, the same on all ranks. Empty for hooks that do
  // not measure it. Called between steps.
  virtual std::optional<double> predicted_seconds(int64_t /*numel*/) const { return std::nullopt; }

  // Returns a future's value, which is a tensor or a list of one tensor.
  at::Tensor parseHookResult(const c10::IValue& result) override;

 protected:
  // Thread-safe, because futures may complete on other threads.
  void count_payload(int64_t bytes) { payload_bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }

  // Counts the payload of runHook's bucket, and its message for compression(). Call it in runHook.
  void count_exchange(const c10d::GradBucket& bucket, const ExchangedBytes& bytes);

  // Passes the bucket to an inner hook, and counts its bytes for this hook. Call it in runHook.
  c10::intrusive_ptr<c10::ivalue::Future> run_inside(CommHook& inner, c10d::GradBucket& bucket);

 private:
  // A bucket as last sent.
  struct CountedBucket {
    int64_t numel = 0;
    ExchangedBytes bytes;
  };
  std::atomic<int64_t> payload_bytes_sent_{0};
  std::vector<CountedBucket> buckets_;  // By bucket index.
};

// Bytes that each rank sends to all-reduce `payload_bytes` in a ring of W = `world_size` ranks: 2 (W - 1) / W times the
// payload, rounded up.
constexpr int64_t ring_all_reduce_bytes(int64_t payload_bytes, int64_t world_size) {
  return (2 * (world_size - 1) * payload_bytes + world_size - 1) / world_size;
}

}  // namespace hooks
}  // namespace narrowcast

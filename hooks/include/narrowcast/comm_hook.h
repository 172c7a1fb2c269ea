// What every communication hook of the project has in common, and what it keeps over a restart of the training.
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

namespace narrowcast::hooks {

// A parameter or another tensor of a module, under the name by which saved state knows it.
struct NamedParameter {
  std::string name;   // as the module has it, e.g. "layers.0.weight"
  at::Tensor tensor;  // of any shape, dtype and device; the module's own, not a copy
};

// Tensors by name, on any device; the names are the hook's own.
using HookState = std::map<std::string, at::Tensor>;

// What the ranks of an earlier run left, as one rank of the run that resumes from there gets it. The two worlds may
// differ in size. Rank r of a world of W gets what the former ranks r, r + W, r + 2 W, ... left, so that each of them
// is with exactly one rank: in a world of the former size every rank gets its own, in a smaller one some get that of
// several, and in a larger one the last ranks get none.
struct FormerRanks {
  int64_t world_size = 1;         // how many former ranks there were
  std::vector<HookState> states;  // of those that this rank gets, in their order
  HookState first;                // of former rank 0, where `states` is empty

  // What the former rank with this one's number left or, where there was none, former rank 0.
  const HookState& own() const { return states.empty() ? first : states[0]; }
};

// A 64-bit integer as a tensor of no dimensions.
inline at::Tensor int_tensor(int64_t value) { return at::full({}, value, at::kLong); }

// The integer of that name. Throws CorruptInputError naming what is missing or no such number.
inline int64_t int_of(const HookState& state, const std::string& name) {
  const auto found = state.find(name);
  NARROWCAST_CHECK_INPUT(found != state.end(), "the hook's state lacks '", name, "'");
  NARROWCAST_CHECK_INPUT(found->second.scalar_type() == at::kLong && found->second.numel() == 1, "the hook's state '",
                         name, "' is no integer");
  return found->second.item<int64_t>();
}

// What is saved under names that begin with `prefix`, without it.
NARROWCAST_EXPORT HookState part_of(const HookState& state, const std::string& prefix);
NARROWCAST_EXPORT FormerRanks part_of(const FormerRanks& saved, const std::string& prefix);

// What the exchange of a bucket takes.
struct ExchangedBytes {
  int64_t payload = 0;  // that this rank sends, to all peers and in all hops
  int64_t message = 0;  // of what stands for the whole bucket on its way: codes and scales, or factors
};

// A DDP communication hook: given a bucket of this rank's gradients it returns a future of the bucket averaged over the
// ranks, in the bucket's dtype and shape.
//
// Threads: runHook is called on the thread of the backward pass, for the buckets in the same order on all ranks. It
// must not block on other ranks; nor may a callback of a future. All other functions are called between steps, by one
// thread at a time, but for payload_bytes_sent(), which any thread may call at any time. A future may be completed on
// any thread.
//
// Life time: a hook is made after its process group. It is destroyed after the last of its futures is complete, and
// before the group; a future's callback must not own the hook. The bucket passed to runHook lives until runHook
// returns, its tensor until the future is complete.
//
// Errors: what runHook throws, or its future holds, ends the backward pass on this rank with that exception. A peer or
// network that fails is a c10::DistBackendError naming this rank; see narrowcast/errors.h for the others. A future that
// is not complete within the process group's time limit ends the pass, too (DistributedDataParallel).
//
// Versions: a hook outside of this library is compiled against the headers of the library that it is linked with. The
// library's soname has the major version. Functions that a minor version adds here have defaults; there is no promise
// that a hook compiled before works without being compiled again. State of a former version must be read, or refused
// with a CorruptInputError.
class NARROWCAST_EXPORT CommHook : public c10d::CommHookInterface {
 public:
  // The name by which create_comm_hook makes this hook.
  virtual std::string_view name() const = 0;

  // Bytes of payload this rank has handed to the network since the hook was
  // made: gradients, codes and scales, without the transport's own framing.
  // Where LibTorch chooses the algorithm, what a ring all-reduce sends.
  int64_t payload_bytes_sent() const { return payload_bytes_sent_.load(std::memory_order_relaxed); }

  // Compression ratio: float32 bytes of the buckets divided by the bytes of their encoded messages, as they were sent
  // last. Hops and ranks do not count. Empty until something was sent, and for hooks that count their payload alone.
  virtual std::optional<double> compression() const;

  // What the bits of later steps depend on, on this rank, and its counters. A hook with state of its own adds it to
  // what it inherits. `parameters` are those whose gradients the buckets hold.
  virtual HookState state(const std::vector<NamedParameter>& parameters) const;

  // Resumes from such state, before the first step. Throws CorruptInputError naming what is missing or does not fit.
  virtual void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters);

  // Multiplies what is kept of earlier gradients, such as residuals, with a positive factor: when the loss is scaled by
  // another number from the next step on, their quotient, on all ranks alike.
  virtual void rescale_state(double /*factor*/) {}

  // Whether all ranks end a step with the same gradients, and so with the same parameters.
  virtual bool keeps_replicas_equal() const { return true; }

  // By rank, the number of its group, if the hook averages in groups of the ranks, be it now or later. Else empty.
  virtual std::vector<int64_t> groups() const { return {}; }

  // How many nodes of how many ranks it averages over, as "2 x 4", or "3 + 1" for nodes that differ; where ranks share
  // a node, but not its memory, with the reason in brackets. Empty if the hook knows of no nodes.
  virtual std::string nodes() const { return {}; }

  // Which hooks it takes for which buckets, and why, in one line, if the hook chooses between others; else empty.
  virtual std::string decision() const { return {}; }

  // Seconds that averaging a float32 bucket of so many elements is predicted to take, the same on all ranks; nothing
  // for hooks that do not measure it. Asked for between steps.
  virtual std::optional<double> predicted_seconds(int64_t /*numel*/) const { return std::nullopt; }

  // Takes a future's value, a tensor or a list of one tensor.
  at::Tensor parseHookResult(const c10::IValue& result) override;

 protected:
  // Thread-safe: futures may complete on other threads.
  void count_payload(int64_t bytes) { payload_bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }

  // Counts the payload of the bucket that runHook was called with, and its message for compression(). In runHook.
  void count_exchange(const c10d::GradBucket& bucket, const ExchangedBytes& bytes);

  // Gives the bucket to a hook inside this one, and counts what that sends as its own. In runHook.
  c10::intrusive_ptr<c10::ivalue::Future> run_inside(CommHook& inner, c10d::GradBucket& bucket);

 private:
  // A bucket, as it was sent last.
  struct CountedBucket {
    int64_t numel = 0;
    ExchangedBytes bytes;
  };
  std::atomic<int64_t> payload_bytes_sent_{0};
  std::vector<CountedBucket> buckets_;  // By their index.
};

// Bytes each rank sends when `payload_bytes` are all-reduced in a ring of
// `world_size` ranks: 2 (W - 1) / W times the payload, rounded up.
constexpr int64_t ring_all_reduce_bytes(int64_t payload_bytes, int64_t world_size) {
  return (2 * (world_size - 1) * payload_bytes + world_size - 1) / world_size;
}

}  // namespace narrowcast::hooks

// Averages a module's gradients over the ranks while the backward pass computes
// them: the part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/ddp_options.h>
#include <narrowcast/export.h>
#include <narrowcast/module_state.h>
#include <narrowcast/process_group.h>

namespace c10d {
class Reducer;
}

namespace narrowcast {

class BackwardWatch;
class BucketChooser;
class BucketExchanges;
class GradientTimes;
class ParameterWatch;
class PassCheck;

// The names of the parameters in each bucket, buckets in the order in which they are sent.
using BucketNames = std::vector<std::vector<std::string>>;

// The size of buckets to which the first steps led, and why; the same on all ranks.
struct BucketChoice {
  // A size that came into question.
  struct Size {
    double cap_mb = 0;        // MiB
    int64_t buckets = 1;      // that many
    double seconds_left = 0;  // from a backward pass's last gradient to the last average, as reckoned
  };

  double backward_seconds = 0;   // of a backward pass without the exchange, from its first gradient to its last
  std::vector<Size> sizes = {};  // from small to large
  int64_t chosen = 0;            // the place of the one in use

  // The one in use.
  const Size& size() const { return sizes.at(static_cast<size_t>(chosen)); }
};

// What one rank leaves, and resumes from.
struct ReducerState {
  BucketNames buckets;     // the same on all ranks
  int64_t reductions = 0;  // backward passes that averaged gradients, the same on all ranks
  // The hook's state, that of this rank alone where it is left: what it resumes from in a world of the same size. In
  // another one it needs that of the former ranks which FormerRanks names. Empty without a hook.
  hooks::FormerRanks hook = {};
};

// While one lives, gradients accumulate locally. Made by no_sync(); they nest.
class [[nodiscard]] NoSyncGuard {
 public:
  // Sets `synchronise`, which outlives the guard, to false until the guard goes.
  explicit NoSyncGuard(bool& synchronise) : synchronise_(synchronise), previous_(synchronise) { synchronise = false; }
  ~NoSyncGuard() { synchronise_ = previous_; }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  bool& synchronise_;
  const bool previous_;
};

// A step, on every rank alike: before_forward, the module's forward, after_forward,
// a backward pass from what after_forward returned. Not thread-safe. Failures of
// peers are c10::DistBackendErrors that name the rank and the step.
class NARROWCAST_EXPORT GradientReducer {
 public:
  // A collective. Throws as DistributedDataParallel's constructor says.
  GradientReducer(ModuleState state, ProcessGroupPtr group, const DdpOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Rebuilds the buckets in the order in which gradients came, once, before the
  // second step, chooses their size before the fourth if the options leave that open, and broadcasts rank 0's buffers
  // where due. All are collectives.
  void before_forward();

  // Whether after_forward needs the output tensors of the forward in progress.
  bool wants_outputs() const;

  // Makes the coming backward pass reduce. `outputs` are all tensors that forward
  // returned, or nothing unless wants_outputs(). Returns what the caller must use
  // in their place.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);

  // The rest is what DistributedDataParallel has under the same names; it tells more.

  // Averages by `hook` from now on: before the first backward pass, once, with the hook "none".
  void register_comm_hook(std::unique_ptr<hooks::CommHook> hook);
  // While the guard lives, gradients accumulate locally.
  NoSyncGuard no_sync() { return NoSyncGuard(synchronise_); }
  // loss.backward(), with failures of peers as c10::DistBackendErrors.
  void backward(const at::Tensor& loss) const;
  // Makes all gradients undefined.
  void zero_grad();
  // Name of the hook in use, or "none".
  std::string hook_name() const;
  // Over which nodes the hook averages, see CommHook::nodes; empty without a hook.
  std::string hook_nodes() const { return hook_ == nullptr ? "" : hook_->nodes(); }
  // What the hook has decided, see CommHook::decision; empty without a hook.
  std::string hook_decision() const;
  // CommHook::rescale_state of the hook, if there is one.
  void rescale_hook_state(double factor);
  // Bytes of gradients, codes and scales that this rank has sent.
  int64_t payload_bytes_sent() const;
  // Bytes that it would have sent without a hook.
  int64_t payload_bytes_without_hook() const;
  // CommHook::compression of the hook, or that of gradients as they are.
  std::optional<double> compression() const;
  // Bytes of each bucket in the order in which they are sent.
  std::vector<int64_t> bucket_bytes() const;
  // Seconds that backward passes have waited for other ranks to begin the same pass, before their own last gradient was
  // there, since the last call.
  double take_waited_seconds();
  // A collective: rebuilds the buckets and broadcasts rank 0's buffers now if that is due, and chooses the size of
  // buckets. Whether the buckets stay as they are from now on.
  bool settle_buckets();
  // What the choice of a size led to; nothing before it, without one, and after load_state.
  const std::optional<BucketChoice>& bucket_choice() const { return bucket_choice_; }
  // What later steps depend on besides parameters and optimizer.
  ReducerState state() const;
  // Resumes from such a state, before the first step. Throws CorruptInputError for one that does not fit.
  void load_state(const ReducerState& saved);
  // Whether all ranks end a step with the same gradients.
  bool keeps_replicas_equal() const { return hook_ == nullptr || hook_->keeps_replicas_equal(); }
  // CommHook::groups of the hook; empty without one.
  std::vector<int64_t> hook_groups() const { return hook_ == nullptr ? std::vector<int64_t>{} : hook_->groups(); }
  // The group that it was made with, never null.
  const ProcessGroupPtr& process_group() const { return group_; }

 private:
  // A static graph, from its first forward on.
  struct StaticGraph {
    bool has_local_passes = false;  // The Reducer has seen passes inside no_sync before it could learn.
    bool is_learning = false;       // The pass from which it learns has begun, and has not ended so far.
    bool is_known = false;
  };

  bool is_first_static_step() const;
  void compare_between_ranks() const;
  void begin_pass();
  void broadcast(const std::vector<NamedTensor>& tensors) const;
  std::function<void()> static_reduction() const;
  void use_hook(std::shared_ptr<hooks::CommHook> hook, std::optional<std::chrono::milliseconds> limit);
  std::vector<std::vector<size_t>> aligned(std::vector<std::vector<size_t>> buckets) const;
  void prepare_for_forward();
  void rebuild();
  bool rebuild_reducer();
  std::string unused_parameters() const;
  void align_rebuilt_buckets();
  void choose_buckets();

  const ModuleState state_;
  const ProcessGroupPtr group_;
  const DdpOptions options_;
  const std::vector<NamedTensor> trainable_;
  std::unique_ptr<ParameterWatch> parameters_;
  std::unique_ptr<PassCheck> passes_;
  std::shared_ptr<BackwardWatch> backward_;
  std::unique_ptr<BucketChooser> chooser_;     // Until the size of buckets is chosen.
  bool aligns_ = false;                        // Whether parameters lie in buckets by the blocks that they fill,
  std::unique_ptr<GradientTimes> first_pass_;  // which needs the order of gradients, until buckets are rebuilt.
  std::optional<BucketChoice> bucket_choice_;
  std::shared_ptr<hooks::CommHook> hook_;
  std::shared_ptr<BucketExchanges> exchanges_;  // Between hook_ and Reducers, which it outlives; null without a hook.
  std::shared_ptr<c10d::Reducer> reducer_;
  std::optional<std::vector<std::vector<size_t>>> buckets_to_keep_;  // The Reducer's own come after one step more.
  const std::shared_ptr<StaticGraph> static_graph_;  // Shared with backward passes, which can outlive this object.
  bool synchronise_ = true;
  bool buffers_due_ = false;
};

}  // namespace narrowcast

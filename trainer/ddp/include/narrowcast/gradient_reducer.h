// Averages a module's gradients over the ranks while the backward pass computes them. This is the part of
// DistributedDataParallel that does not depend on the module's type.
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
class Join;
class ParameterWatch;
class PassCheck;

// The names of the parameters in each bucket, buckets in the order in which they are sent.
using BucketNames = std::vector<std::vector<std::string>>;

// The bucket size that was chosen after the first steps, and why. The same on all ranks.
struct BucketChoice {
  // A candidate size.
  struct Size {
    double cap_mb = 0;        // MiB
    int64_t buckets = 1;      // number of buckets
    double seconds_left = 0;  // estimated, from a backward pass's last gradient to the last average
  };

  double backward_seconds = 0;   // of a backward pass without communication, from first to last gradient
  std::vector<Size> sizes = {};  // from small to large
  int64_t chosen = 0;            // index of the size in use

  // The size in use.
  const Size& size() const { return sizes.at(static_cast<size_t>(chosen)); }
};

// The saved state of one rank.
struct ReducerState {
  BucketNames buckets;     // the same on all ranks
  int64_t reductions = 0;  // backward passes that averaged gradients, the same on all ranks
  // The hook's state; empty without a hook. A saved state has this rank's part only, from which the rank resumes in a
  // world of the same size. To resume in a world of another size, it needs the parts of the former ranks that
  // FormerRanks names.
  hooks::FormerRanks hook = {};
};

// While a guard lives, gradients accumulate locally. Made by no_sync(). Guards nest.
class [[nodiscard]] NoSyncGuard {
 public:
  // Sets `synchronise` to false until the guard is destroyed. `synchronise` must outlive the guard.
  explicit NoSyncGuard(bool& synchronise) : synchronise_(synchronise), previous_(synchronise) { synchronise = false; }
  ~NoSyncGuard() { synchronise_ = previous_; }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  bool& synchronise_;
  const bool previous_;
};

// A step is the same on every rank: before_forward, the module's forward, after_forward, and a backward pass from the
// result of after_forward. Not thread-safe. Failures of peers are c10::DistBackendErrors that name the rank and the
// step.
class NARROWCAST_EXPORT GradientReducer {
 public:
  // A collective. Throws as DistributedDataParallel's constructor.
  GradientReducer(ModuleState state, ProcessGroupPtr group, const DdpOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Rebuilds the buckets once, before the second step, in the order in which gradients became ready. Chooses their size
  // before the fourth step if the options leave it open. Broadcasts rank 0's buffers if that is due. All three are
  // collectives.
  void before_forward();

  // Whether after_forward needs the output tensors of the forward in progress.
  bool wants_outputs() const;

  // Makes the next backward pass reduce. `outputs` are all tensors that forward returned; empty unless wants_outputs().
  // Returns the tensors that the caller must use in their place.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);

  // The functions below are those of DistributedDataParallel under the same names, where they are documented.

  // Averages by `hook` from now on. Call it once, with the hook "none", before the first backward pass.
  void register_comm_hook(std::unique_ptr<hooks::CommHook> hook);
  // While the guard lives, gradients accumulate locally.
  NoSyncGuard no_sync() { return NoSyncGuard(synchronise_); }
  // loss.backward(), but failures of peers are c10::DistBackendErrors.
  void backward(const at::Tensor& loss) const;
  // backward(loss) with this rank's share of the samples of all ranks, in 0..1.
  void backward(const at::Tensor& loss, double weight) const;
  // Makes all gradients undefined.
  void zero_grad();
  // Name of the hook in use, or "none".
  std::string hook_name() const;
  // The nodes over which the hook averages (CommHook::nodes); empty without a hook.
  std::string hook_nodes() const { return hook_ == nullptr ? "" : hook_->nodes(); }
  // The hook's decision (CommHook::decision); empty without a hook.
  std::string hook_decision() const { return hook_ == nullptr ? "" : hook_->decision(); }
  // Calls CommHook::rescale_state of the hook, if there is one.
  void rescale_hook_state(double factor);
  // Bytes of gradients, codes and scales that this rank has sent.
  int64_t payload_bytes_sent() const;
  // Bytes that this rank would have sent without a hook.
  int64_t payload_bytes_without_hook() const;
  // CommHook::compression of the hook; without a hook, the ratio for uncompressed gradients.
  std::optional<double> compression() const;
  // Bytes of each bucket in the order in which they are sent.
  std::vector<int64_t> bucket_bytes() const;
  // Seconds, since the last call, that backward passes have waited for other ranks to begin the same pass. Only waiting
  // before a pass's own last gradient counts.
  double take_waited_seconds();
  // A collective: rebuilds the buckets and broadcasts rank 0's buffers now if that is due, and chooses the size of
  // buckets. Returns whether the buckets stay as they are from now on.
  bool settle_buckets();
  // Whether the buckets stay as they are from now on.
  bool buckets_are_settled() const;
  // A collective: broadcasts rank 0's buffers now if that is due.
  void sync_buffers();
  // The bucket size that was chosen. Empty before the choice, without a choice, and after load_state.
  const std::optional<BucketChoice>& bucket_choice() const { return bucket_choice_; }
  // The state on which later steps depend, besides parameters and optimizer.
  ReducerState state() const;
  // Resumes from a saved state, before the first step. Throws CorruptInputError if it does not fit.
  void load_state(const ReducerState& saved);
  // Whether all ranks end a step with the same gradients.
  bool keeps_replicas_equal() const { return hook_ == nullptr || hook_->keeps_replicas_equal(); }
  // CommHook::groups of the hook; empty without one.
  std::vector<int64_t> hook_groups() const { return hook_ == nullptr ? std::vector<int64_t>{} : hook_->groups(); }
  // The group that this object was made with, never null.
  const ProcessGroupPtr& process_group() const { return group_; }
  // The options that this object was made with, and the device of the gradients.
  const DdpOptions& options() const { return options_; }
  // The parameters in each bucket, in the order of their gradients there; buckets in the order in which they are sent.
  // They are those of the last averaged pass, which a later forward pass may have rebuilt. Before the first one, and
  // without a hook, they are those of the next pass.
  std::vector<std::vector<at::Tensor>> buckets() const;
  // CommHook::average_shards of the hook; empty without one.
  std::vector<int64_t> average_shards(std::optional<hooks::ShardRounding> rounding);
  // Whether the last average_shards had a rounding. Gradients must then be made undefined between two averaged passes:
  // backward() throws c10::ValueError otherwise.
  bool averages_shards() const { return shard_rounding_.has_value(); }

 private:
  friend class Join;

  // The next pass, as all ranks of a Join agreed on it.
  struct AnnouncedPass {
    bool averages = true;    // else it is inside no_sync
    int64_t first_rank = 0;  // the lowest rank that has data
  };

  // A pass without data: it takes part in all collectives of a forward and a backward pass, with gradients of 0. It
  // adds the gradients of earlier passes inside no_sync, and makes other gradients undefined.
  void run_shadow_pass();
  void check_announced_mode() const;
  void end_announced_pass();

  // The state of a static graph, from its first forward on.
  struct StaticGraph {
    bool has_local_passes = false;  // The Reducer has seen passes inside no_sync before it could learn.
    bool is_learning = false;       // The pass from which it learns has begun and has not ended.
    bool is_known = false;
  };

  bool is_first_static_step() const;
  void compare_between_ranks() const;
  void begin_pass();
  bool compares_pass() const;  // Whether all ranks compare the pass at its start, before a collective of it.
  void broadcast(const std::vector<NamedTensor>& tensors, int64_t from) const;
  std::function<void()> static_reduction() const;
  void use_hook(std::shared_ptr<hooks::CommHook> hook, std::optional<std::chrono::milliseconds> limit);
  std::vector<std::vector<size_t>> aligned(std::vector<std::vector<size_t>> buckets) const;
  void check_shards() const;
  void prepare_for_forward();
  void replace_reducer(const DdpOptions& sized, const std::vector<std::vector<size_t>>& buckets);
  void rebuild();
  bool rebuild_reducer();
  std::string unused_parameters() const;
  void align_rebuilt_buckets();
  void choose_buckets();
  void stop_choosing();

  const ModuleState state_;
  const ProcessGroupPtr group_;
  const DdpOptions options_;
  const std::vector<NamedTensor> trainable_;
  std::unique_ptr<ParameterWatch> parameters_;
  std::unique_ptr<PassCheck> passes_;
  std::shared_ptr<BackwardWatch> backward_;
  std::unique_ptr<BucketChooser> chooser_;     // Until the size of buckets is chosen.
  bool aligns_ = false;                        // Whether buckets order parameters by the blocks that they fill.
  std::unique_ptr<GradientTimes> first_pass_;  // If aligns_, until buckets are rebuilt: the order of gradients.
  std::optional<BucketChoice> bucket_choice_;
  std::shared_ptr<hooks::CommHook> hook_;
  std::shared_ptr<BucketExchanges> exchanges_;  // Between hook_ and Reducers, which it outlives; null without a hook.
  std::shared_ptr<c10d::Reducer> reducer_;
  std::optional<std::vector<std::vector<size_t>>> buckets_to_keep_;  // The Reducer replaces its own a step later.
  const std::shared_ptr<StaticGraph> static_graph_;  // Shared with backward passes, which can outlive this object.
  bool synchronise_ = true;
  bool accumulates_ = false;  // Whether the last pass was inside no_sync.
  bool buffers_due_ = false;
  int64_t buffers_from_ = 0;  // The rank whose buffers are due.
  std::optional<AnnouncedPass> announced_;
  std::optional<hooks::ShardRounding> shard_rounding_;
  mutable bool has_averaged_shards_ = false;  // In the last backward().
};

}  // namespace narrowcast

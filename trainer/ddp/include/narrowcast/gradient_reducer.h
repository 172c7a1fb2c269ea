// Averages a module's gradients over the ranks while the backward pass computes
// them: the part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>

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
#include <narrowcast/reducer_state.h>

namespace c10d {
class Reducer;
}

namespace narrowcast {

class ReductionCounter;

// While one lives, gradients accumulate locally. Made by no_sync(); they nest.
class [[nodiscard]] NoSyncGuard {
 public:
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
  // second step, and broadcasts rank 0's buffers where due. Both are collectives.
  void before_forward();

  // Whether after_forward needs the output tensors of the forward in progress.
  bool wants_outputs() const;

  // Makes the coming backward pass reduce. `outputs` are all tensors that forward
  // returned, or nothing unless wants_outputs(). Returns what the caller must use
  // in their place.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);

  // See DistributedDataParallel for these.
  void register_comm_hook(std::unique_ptr<hooks::CommHook> hook);
  NoSyncGuard no_sync() { return NoSyncGuard(synchronise_); }
  void backward(const at::Tensor& loss) const;
  void zero_grad();
  std::string hook_name() const;
  int64_t payload_bytes_sent() const;
  int64_t payload_bytes_without_hook() const;
  std::vector<int64_t> bucket_bytes() const;
  bool settle_buckets();
  ReducerState state() const;
  void load_state(const SavedReducerState& saved);
  bool keeps_replicas_equal() const { return hook_ == nullptr || hook_->keeps_replicas_equal(); }
  const ProcessGroupPtr& process_group() const { return group_; }

 private:
  bool is_first_static_step() const;
  void compare_between_ranks() const;
  void broadcast(const std::vector<NamedTensor>& tensors) const;
  std::function<void()> static_reduction() const;
  void rebuild();
  std::vector<hooks::NamedParameter> named_parameters() const;

  const ModuleState state_;
  const ProcessGroupPtr group_;
  const DdpOptions options_;
  const std::vector<NamedTensor> trainable_;
  std::unique_ptr<ReductionCounter> reductions_;
  std::shared_ptr<c10d::Reducer> reducer_;
  hooks::CommHook* hook_ = nullptr;                                  // Owned by reducer_.
  std::optional<std::vector<std::vector<size_t>>> buckets_to_keep_;  // The Reducer's own come after one step more.
  std::shared_ptr<bool> static_graph_known_;  // Set by the first backward pass of a static graph.
  bool synchronise_ = true;
  bool buffers_due_ = false;
};

}  // namespace narrowcast

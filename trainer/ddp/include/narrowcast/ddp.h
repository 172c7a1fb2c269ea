// Data-parallel training of any module: every rank computes gradients from its data, and all ranks get the same
// average.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <narrowcast/ddp_options.h>
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/module_state.h>
#include <narrowcast/output_tensors.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// Wraps a torch::nn module (a ModuleHolder such as torch::nn::Linear, or a
// std::shared_ptr to a module class) or a torch::jit::Module:
//
//   DistributedDataParallel ddp(model, group, DdpOptions().hook("int8"));
//   auto loss = loss_of(ddp.forward(inputs), targets);
//   ddp.zero_grad();
//   ddp.backward(loss);  // gradients are averaged here, overlapped with computing them
//   optimizer.step();
//
// If a backward pass throws on all ranks, destroy this object on all ranks. The destructor waits for the buckets that
// are being sent; then another DistributedDataParallel can use the group. It waits at most until the group's time-out,
// and at most 5 s if the exception itself destroys the object.
//
// Buckets of gradients come from LibTorch's c10d::Reducer. The tensors that forward returns must be in types that
// visit_tensors (output_tensors.h) supports. All ranks make the same calls in the same order, from one thread each. A
// rank that evaluates alone uses module().
template <class Module>
class DistributedDataParallel {
 public:
  // A collective. Compares options, parameters and buffers between the ranks. With init_sync, parameters and buffers
  // become equal to rank 0's. Throws c10::ValueError
  //  - before anything is sent: for options that contradict each other, an unknown hook, a null group or sparse
  //    gradients;
  //  - on all ranks: if ranks differ (it names the first difference), or if the machines do not allow the levels or the
  //    node size that the options ask for;
  //  - on all ranks: if no parameter requires a gradient, or if parameters are on several devices or on a device that
  //    the group's backend does not serve.
  DistributedDataParallel(Module module, ProcessGroupPtr group, const DdpOptions& options = {})
      : module_(std::move(module)), reducer_(module_state(state_source()), std::move(group), options) {}

  // Returns the result of the module's forward for these arguments. With gradients enabled and outside no_sync, the
  // next backward pass through the result averages the gradients. A torch::jit::Module accepts any argument that
  // converts to c10::IValue. Throws what the module's forward throws, and
  //  - c10::ValueError naming parameters that got no gradient in the last backward pass, unless the options allow it;
  //  - c10::ValueError after a backward pass through which an exception passed: create another DistributedDataParallel
  //    then;
  //  - c10::ValueError on all ranks if a parameter of one rank has another dtype, device or shape than when this
  //    wrapper was made, or requires a gradient only now;
  //  - c10::DistBackendError naming this rank if a peer or the network fails.
  template <class... Args>
  auto forward(Args&&... args) {
    reducer_.before_forward();
    auto output = call(std::forward<Args>(args)...);
    std::vector<at::Tensor> tensors;
    const bool replaces = reducer_.wants_outputs();
    if (replaces) {
      visit_tensors(output, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
    }
    tensors = reducer_.after_forward(std::move(tensors));
    if (replaces) {
      visit_tensors(output, [&, next = size_t{0}](at::Tensor& tensor) mutable { tensor = tensors[next++]; });
    }
    return output;
  }

  // loss.backward(), but failures of peers are c10::DistBackendErrors that name this rank. Both loss.backward() and
  // this function throw c10::ValueError on all ranks if the ranks do not run the same backward pass. The group cannot
  // be used after that.
  void backward(const at::Tensor& loss) const { reducer_.backward(loss); }

  // The same for ranks with unequal numbers of samples. `loss` is this rank's mean over its samples, and `weight` is
  // the number of these samples divided by those of all ranks in this backward pass, in 0..1. The averaged gradients
  // are
  //   sum over ranks r of weight_r * gradient_r,
  // the gradients of the mean over all samples. It multiplies the loss by `weight` times the number of ranks W. So the
  // hook gets weighted gradients, and its error bound holds for them. A weight of 1 / W is backward(loss), bit for bit
  // if W is a power of two. The product has the dtype of `loss`.
  //   - Passes inside no_sync have their own weights. Divide by the number of passes, or weigh with the samples of all
  //     passes and ranks.
  //   - A rank without samples runs a pass of any batch with the weight 0. Its loss and gradients must be
  //     finite, because 0 times inf is NaN.
  //   - With a scaled loss (GradScaler), pass the scaled loss.
  //   - A hook that averages in groups of ranks gives the mean of weight_r * W * gradient_r in each group.
  // If the weights of all ranks do not add up to 1, the gradients are multiplied by their sum, the same on all ranks.
  // That is not an error, because checking it would take another collective in each pass. Throws c10::ValueError for a
  // weight that is not in 0..1. If this pass averages, the hook keeps replicas equal and the group has a backend for
  // CPU tensors, all ranks of a module on the CPU throw it. On GPUs only the rank with this weight throws. The others
  // then wait for it until it leaves the group, or until the group's time-out.
  void backward(const at::Tensor& loss, double weight) const { reducer_.backward(loss, weight); }

  // While the guard lives, forward and backward passes accumulate gradients locally. The first pass after it averages
  // the accumulated gradients. A training may begin inside a guard, also with static_graph.
  NoSyncGuard no_sync() { return reducer_.no_sync(); }

  // Makes all gradients undefined, as the optimizer's zero_grad does; also with gradient_as_bucket_view.
  void zero_grad() { reducer_.zero_grad(); }

  // Uses a custom hook. Call it once, with the hook "none", before the first backward pass. Throws c10::ValueError for
  // null, and if bucket_cap_mb is to be chosen, because that needs a hook known by its name. Throws c10::Error if there
  // is a hook already.
  // The hook must return a future for each bucket. When all gradients are ready, backward() waits for the futures in
  // the order of the buckets, for each at most until the group's time-out. After that it throws c10::DistBackendError,
  // which names the hook and the bucket.
  void register_comm_hook(std::unique_ptr<hooks::CommHook> hook) { reducer_.register_comm_hook(std::move(hook)); }

  // The module; its forward does not communicate.
  Module& module() { return module_; }
  // The module of a const wrapper.
  const Module& module() const { return module_; }

  // The group that this object was made with, never null.
  const ProcessGroupPtr& process_group() const { return reducer_.process_group(); }

  // The part that averages gradients, for a ShardedOptimizer.
  GradientReducer& reducer() { return reducer_; }

  // Name of the hook in use, or "none".
  std::string hook_name() const { return reducer_.hook_name(); }

  // The nodes over which the hook in use averages, as CommHook::nodes describes them. If ranks could not share memory,
  // the text contains the reason why each rank averages by itself. Empty for hooks that do not use nodes.
  std::string hook_nodes() const { return reducer_.hook_nodes(); }

  // The hooks that the hook in use has chosen, and why, if it chooses between several; else empty.
  std::string hook_decision() const { return reducer_.hook_decision(); }

  // For training with a scaled loss whose scale changes. Multiplies the state that the hook keeps from earlier
  // steps, such as residuals, by `factor`: the next step's scale divided by the last step's. Call it between steps, on
  // all ranks with the same factor.
  void rescale_hook_state(double factor) { reducer_.rescale_hook_state(factor); }

  // Bytes of gradients, codes and scales that this rank has sent, as counted by the hook. For "none" it is 2 (W - 1) /
  // W times the gradients' bytes per averaged backward pass, as in a ring all-reduce.
  int64_t payload_bytes_sent() const { return reducer_.payload_bytes_sent(); }

  // Bytes that this rank would have sent with the hook "none".
  int64_t payload_bytes_without_hook() const { return reducer_.payload_bytes_without_hook(); }

  // Compression ratio of gradients with the present buckets: their bytes in float32 divided by the bytes of the codes
  // and scales, or of the factors, that the hook sends for them. The numbers of ranks and hops do not matter. 1 with
  // "none" and float32. Empty as long as nothing is sent. Call it between steps.
  std::optional<double> compression() const { return reducer_.compression(); }

  // A collective, between steps. It does now what the next forward would do: rebuilds the Reducer's buckets if they
  // have not been rebuilt, and broadcasts rank 0's buffers if that is due. If the size of buckets is to be chosen, it
  // is chosen from the measurements so far.
  // Returns whether the buckets stay as they are from now on. They do not before the first step; with static_graph they
  // do after two steps.
  bool settle_buckets() { return reducer_.settle_buckets(); }

  // Whether the buckets stay as they are from now on. The same on all ranks.
  bool buckets_are_settled() const { return reducer_.buckets_are_settled(); }

  // A collective, after a backward pass: broadcasts rank 0's buffers now if the next forward would do so
  // (DdpOptions::broadcast_buffers). Then all replicas are equal between steps, buffers included.
  void sync_buffers() { reducer_.sync_buffers(); }

  // The state on which later steps depend, besides parameters and optimizer. Call it between steps, once the buckets
  // are settled. A training with the same options that resumes from this state gives the same bits.
  ReducerState state() const { return reducer_.state(); }
  // Resumes from such a state, before the first forward. Throws CorruptInputError naming what is missing or does not
  // fit.
  void load_state(const ReducerState& saved) { reducer_.load_state(saved); }

  // Whether all ranks end a step with the same gradients (CommHook::keeps_replicas_equal).
  bool keeps_replicas_equal() const { return reducer_.keeps_replicas_equal(); }

  // The groups in which ranks average their gradients (CommHook::groups).
  std::vector<int64_t> hook_groups() const { return reducer_.hook_groups(); }

  // The bucket size that was chosen after the first steps, if the options leave it open. Empty before the fourth
  // forward or settle_buckets, and in a training that resumes.
  const std::optional<BucketChoice>& bucket_choice() const { return reducer_.bucket_choice(); }

  // Bytes of each bucket in the order in which they are sent. They change at the second forward, and when the size of
  // buckets is chosen.
  std::vector<int64_t> bucket_bytes() const { return reducer_.bucket_bytes(); }

  // Seconds, since the last call, that backward passes have waited for other ranks to begin the same pass. Only waiting
  // before a pass's own last gradient counts.
  double take_waited_seconds() { return reducer_.take_waited_seconds(); }

 private:
  static constexpr bool is_script = std::is_same_v<Module, torch::jit::Module>;

  auto state_source() const {
    if constexpr (is_script) {
      return module_;
    } else if constexpr (requires { module_.ptr(); }) {
      return std::shared_ptr<torch::nn::Module>(module_.ptr());
    } else {
      return std::shared_ptr<torch::nn::Module>(module_);
    }
  }

  template <class... Args>
  auto call(Args&&... args) {
    if constexpr (is_script) {
      std::vector<c10::IValue> inputs;
      (inputs.emplace_back(std::forward<Args>(args)), ...);
      return module_.forward(std::move(inputs));
    } else {
      return module_->forward(std::forward<Args>(args)...);
    }
  }

  Module module_;
  GradientReducer reducer_;
};

}  // namespace narrowcast

// Data-parallel training of any module: every rank computes gradients of its own
// data, and all ranks end with the same average.
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
// If a backward pass throws on all ranks, destroy this object on all ranks: the destructor waits for the buckets that
// are being sent, and the group can be used by another one. It waits at most until the group's time-out, and 5 s if the
// exception itself destroys it.
//
// Gradients are computed by buckets on LibTorch's c10d::Reducer. What forward
// returns must have its tensors in types that visit_tensors (output_tensors.h)
// knows. All ranks make the same calls in the same order, from one thread each; a
// rank that evaluates alone uses module().
template <class Module>
class DistributedDataParallel {
 public:
  // A collective. Compares options, parameters and buffers between the ranks and
  // makes them equal to rank 0's (init_sync). Throws c10::ValueError: before
  // anything is sent for options that contradict each other, an unknown hook, a
  // null group or sparse gradients; on all ranks alike where ranks differ (it names
  // the first difference), levels or a node size are asked for that the machines do not allow, no parameter requires a
  // gradient, or parameters are on several devices or on one that the group's backend does not serve.
  DistributedDataParallel(Module module, ProcessGroupPtr group, const DdpOptions& options = {})
      : module_(std::move(module)), reducer_(module_state(state_source()), std::move(group), options) {}

  // Returns what the module's forward does for these arguments. With gradients enabled
  // and outside no_sync, the next backward pass through the result averages the
  // gradients. A torch::jit::Module takes anything that converts to c10::IValue.
  // Throws what the module's forward throws; c10::ValueError naming parameters that got no gradient in the last
  // backward pass, if the options do not allow for it, and after a backward pass through which an exception passed:
  // then make another DistributedDataParallel; on all ranks c10::ValueError if a parameter of one has another dtype,
  // device or shape than when this wrapper was made, or requires a gradient only now; c10::DistBackendError naming this
  // rank if a peer or the network fails.
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

  // loss.backward(), with failures of peers as c10::DistBackendErrors that name this rank. loss.backward() and this
  // throw c10::ValueError on all ranks if they do not run the same backward pass; then the group is not usable any
  // more.
  void backward(const at::Tensor& loss) const { reducer_.backward(loss); }

  // While the guard lives, forward and backward passes accumulate gradients locally; the first pass after it averages
  // what has accumulated. A training may begin so, also with static_graph.
  NoSyncGuard no_sync() { return reducer_.no_sync(); }

  // Makes all gradients undefined, as the optimizer's zero_grad does; also with gradient_as_bucket_view.
  void zero_grad() { reducer_.zero_grad(); }

  // Uses a custom hook: with the hook "none", before the first backward pass, once. Throws c10::ValueError for null,
  // and where bucket_cap_mb is to be chosen, which needs a hook known by its name; c10::Error where there is a hook
  // already. The hook must return a future for each bucket. Once the gradients are there, the futures are waited for in
  // the order of the buckets, each at most for the time-out of the group: after that backward() throws
  // c10::DistBackendError, which names hook and bucket.
  void register_comm_hook(std::unique_ptr<hooks::CommHook> hook) { reducer_.register_comm_hook(std::move(hook)); }

  // The module; its forward does not communicate.
  Module& module() { return module_; }
  // The module of a const wrapper.
  const Module& module() const { return module_; }

  // The group that it was made with, never null.
  const ProcessGroupPtr& process_group() const { return reducer_.process_group(); }

  // Name of the hook in use, or "none".
  std::string hook_name() const { return reducer_.hook_name(); }

  // Over which nodes the hook in use averages, and why over each rank by itself where ranks could not share memory, as
  // CommHook::nodes says it; empty for hooks that know of no nodes.
  std::string hook_nodes() const { return reducer_.hook_nodes(); }

  // Which hooks the hook in use takes and why, where it chooses between several; else empty.
  std::string hook_decision() const { return reducer_.hook_decision(); }

  // For training with a scaled loss, whose scale changes: multiplies what the hook keeps of earlier gradients with the
  // next step's scale divided by the last one's. Between steps, on all ranks alike.
  void rescale_hook_state(double factor) { reducer_.rescale_hook_state(factor); }

  // Bytes of gradients, codes and scales that this rank has sent: the hook's count,
  // or for "none" 2 (W - 1) / W times the gradients' bytes per averaged backward
  // pass, what a ring all-reduce sends.
  int64_t payload_bytes_sent() const { return reducer_.payload_bytes_sent(); }

  // Bytes that this rank would have sent with "none", whatever the hook is.
  int64_t payload_bytes_without_hook() const { return reducer_.payload_bytes_without_hook(); }

  // How much smaller than float32 it is what the hook sends of the gradients, with the present buckets: their bytes in
  // float32 over those of the codes and scales, or factors, that stand for them, whatever the number of ranks and hops.
  // 1 with "none" and float32. Nothing as long as nothing is sent. Between steps.
  std::optional<double> compression() const { return reducer_.compression(); }

  // A collective, between steps: if the Reducer has yet to rebuild its buckets, it does so now instead of in the next
  // forward, and their size, if it is to be chosen, is chosen from what has been measured so far. If the next forward
  // would broadcast rank 0's buffers, they are broadcast now. Returns whether the buckets stay as they are from now on:
  // not before the first step; with static_graph that takes two steps.
  bool settle_buckets() { return reducer_.settle_buckets(); }

  // What later steps depend on besides parameters and optimizer, asked for between steps, once the buckets are settled.
  // A training with the same options that resumes from it gives the same bits.
  ReducerState state() const { return reducer_.state(); }
  // Resumes from such a state, before the first forward. Throws CorruptInputError naming what is missing or does not
  // fit.
  void load_state(const ReducerState& saved) { reducer_.load_state(saved); }

  // Whether all ranks end a step with the same gradients, as CommHook::keeps_replicas_equal says.
  bool keeps_replicas_equal() const { return reducer_.keeps_replicas_equal(); }

  // The groups in which ranks average their gradients, as CommHook::groups says them.
  std::vector<int64_t> hook_groups() const { return reducer_.hook_groups(); }

  // The size of buckets that the first steps led to, where the options leave it open; nothing before the fourth forward
  // or settle_buckets, and in a training that resumes.
  const std::optional<BucketChoice>& bucket_choice() const { return reducer_.bucket_choice(); }

  // Bytes of each bucket in the order in which they are sent. Changes at the
  // second forward, and where their size is chosen.
  std::vector<int64_t> bucket_bytes() const { return reducer_.bucket_bytes(); }

  // Seconds that backward passes have waited for other ranks to begin the same pass, before their own last gradient was
  // there, since the last call.
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

// Training steps that go on when a rank is lost: a new process takes its place, and gets the state of the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>

namespace narrowcast::recovery {
class ElasticRun;
}

namespace NARROWCAST_EXPORT narrowcast {

// The state of a program, as named parts. A rank that is behind gets all parts from the other ranks. All ranks add the
// same parts, with the same shapes and dtypes, and after each step their values are the same on all ranks. Nothing is
// owned: tensors, modules and optimizers must outlive this object. Not thread-safe.
class ElasticState {
 public:
  // Tensors by name.
  using Tensors = hooks::HookState;

  // Each function throws c10::ValueError naming the part if its name is empty, not UTF-8 or taken already, and if a
  // tensor is not dense or has a dtype that safetensors files do not have.

  // A tensor on any device. Its values are replaced in place; neither shape nor dtype may change later.
  void add(const std::string& name, const at::Tensor& tensor);
  // The parameters and buffers of a module, as tensors NAME.PARAMETER. Gradients are no part of the state: they are
  // undefined in the first step after a loss.
  void add(const std::string& name, torch::nn::Module& module);
  // An optimizer of LibTorch with its options, e.g. the learning rate. One rank sends all of it.
  void add(const std::string& name, torch::optim::Optimizer& optimizer);
  // Anything else. `save` returns tensors that the program will not change, `load` gets equal tensors on the CPU.
  void add(const std::string& name, std::function<Tensors()> save, std::function<void(const Tensors&)> load);

 private:
  friend class recovery::ElasticRun;

  struct InPlace {
    at::Tensor tensor;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes;
  };
  struct Saved {
    std::function<Tensors()> save;
    std::function<void(const Tensors&)> load;
    bool is_equal_on_all_ranks = true;
  };
  void add_saved(const std::string& name, Saved part);
  void check_is_free(const std::string& name) const;

  std::map<std::string, InPlace> tensors_;
  std::map<std::string, Saved> saved_;
};

// A recovery, for ElasticOptions::on_recovery.
struct ElasticRecovery {
  int64_t step = 0;                    // the next step
  std::vector<int64_t> lost_ranks;     // ranks whose processes are new, in order; may be empty
  std::optional<double> seconds = {};  // since this process failed; empty in a process that has replaced another one
};

// Options of an ElasticGroup. run() throws c10::ValueError for a negative first_step and, in jobs of several ranks that
// recover in place, for "nccl" without copies_state.
struct ElasticOptions {
  // Without on_silence, a rank that is silent and not replaced makes the other ranks' steps fail with "gloo". The error
  // names it.
  ProcessGroupOptions group = {};
  int64_t first_step = 0;  // the same on all ranks; greater than 0 if the program has loaded a checkpoint
  // Whether a step that fails may have changed the state. Then the state is copied before each step, into memory of the
  // same size, and buffers of modules become rank 0's after each step. Without copies, a step must change the state
  // only after its last collective has returned, e.g. by optimizer.step(), and the forward pass no buffers. Must be
  // true with "nccl", whose collectives return before they are done.
  bool copies_state = true;
  std::function<void(const ElasticRecovery& recovery)> on_recovery = {};  // called on every rank before the next step
};

// Calls, for run().
struct ElasticSteps {
  std::function<bool(int64_t step)> take = {};  // takes a step, and returns whether there is another one
  // Of a DistributedDataParallel, under the same names. All null without one.
  std::function<bool()> buckets_are_settled = {};
  std::function<void()> sync_buffers = {};
  std::function<ReducerState()> state = {};
  std::function<void(const ReducerState& saved)> load_state = {};
};

// Runs the steps of a training in a process group. If another rank is lost, under `narrowcast-run --recovery=in_place
// --max_restarts=N`, this rank forms a new group with the others, and goes on:
//
//   ElasticState state;
//   state.add("model", *model);
//   state.add("optimizer", optimizer);
//   ElasticGroup elastic(env);
//   elastic.run(
//       state, [&](const ProcessGroupPtr& group) { return DistributedDataParallel(model, group, options); },
//       [&](auto& ddp, int64_t step) {
//         ...  // forward, backward, optimizer.step()
//         return step + 1 < steps;
//       });
//
// The ranks find the furthest step that one of them has done. Those behind it get the state from the others, which send
// a part each. Then the failed step is taken again, so no step is lost and none counts twice. If all that a step does
// follows from the state, the step and the rank, the result has the bits of a run without losses. Residuals of hooks
// are an exception: those of lost ranks, and of ranks that were a step behind, are lost.
//
// Otherwise, e.g. under another launcher or with one rank, the steps run once, and a loss is an error. Not thread-safe.
class ElasticGroup {
 public:
  // `env` is this process's place in the job. Communicates nothing.
  explicit ElasticGroup(WorkerEnv env, ElasticOptions options = {})
      : env_(std::move(env)), options_(std::move(options)) {}

  // Joins the other ranks and takes steps, from options.first_step on, until `step` returns false. All ranks call it
  // once, and return after all of them have taken the last step. After that a loss is not recovered.
  //   - `make(group)` makes, for each group, the object that lasts as long as the group: a DistributedDataParallel, an
  //     object with the same functions state(), load_state(), buckets_are_settled() and sync_buffers(), or anything
  //     else, e.g. the group itself. It must not change the state, except that DistributedDataParallel copies rank 0's
  //     parameters and buffers.
  //   - `step(object, step)` takes one step and returns whether there is another one, the same on all ranks. Rank and
  //     number of ranks are to be read from the group. It is called again with the same number if it fails because
  //     another rank was lost, with the same state as before.
  //
  // Until the buckets are settled, which takes 2 to 4 steps, all ranks go back to the first step if one of them is
  // lost.
  //
  // Throws what `make` and `step` throw, in particular c10::DistBackendError
  //   - for a loss if this launcher does not recover in place,
  //   - for a time-out,
  //   - for the last of 10 losses in a row with neither a step nor a minute in between;
  // c10::ValueError, on all ranks, if the names, dtypes or shapes of the state, or options.first_step, differ between
  // ranks. If the others have worked together before, it is thrown on a new process alone, also if `make` throws
  // c10::ValueError because that process differs. It tells its launcher, which ends its node without the others.
  // c10::ValueError naming a tensor whose shape or dtype has changed, or that ranks share
  // (ShardOptions::share_parameters); and what init_process_group throws.
  template <class Make, class Step>
  void run(ElasticState& state, const Make& make, const Step& step) {
    run_steps(state, [&](const ProcessGroupPtr& group) {
      using Made = std::invoke_result_t<const Make&, const ProcessGroupPtr&>;
      const auto made = std::make_shared<Holder<Made>>(make, group);
      ElasticSteps steps;
      steps.take = [made, &step](int64_t number) { return step(made->object, number); };
      if constexpr (requires(const ReducerState& saved) { made->object.load_state(saved); }) {
        steps.buckets_are_settled = [made] { return made->object.buckets_are_settled(); };
        steps.sync_buffers = [made] { made->object.sync_buffers(); };
        steps.state = [made] { return made->object.state(); };
        steps.load_state = [made](const ReducerState& saved) { made->object.load_state(saved); };
      }
      return steps;
    });
  }

  // How many times this process went on after a loss.
  int64_t recoveries() const { return recoveries_; }

 private:
  // Makes an object that can be neither copied nor moved.
  template <class Object>
  struct Holder {
    template <class Make>
    Holder(const Make& make, const ProcessGroupPtr& group) : object(make(group)) {}
    Object object;
  };

  void run_steps(ElasticState& state, const std::function<ElasticSteps(const ProcessGroupPtr&)>& make);

  const WorkerEnv env_;
  const ElasticOptions options_;
  int64_t recoveries_ = 0;
};

}  // namespace narrowcast

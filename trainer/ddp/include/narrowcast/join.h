// Data-parallel training in which ranks have unequal numbers of batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <narrowcast/export.h>
#include <narrowcast/gradient_reducer.h>

namespace narrowcast {

// Lets ranks that have no data left take part in the steps of the others, until all ranks have ended, as PyTorch's
// torch.distributed.algorithms.Join does.
//
//   Join join(ddp.reducer());
//   const auto step = [&] {
//     optimizer.step();
//     ddp.zero_grad();
//   };
//   for (const Batch& batch : own_batches) {
//     const double weight = join.begin_pass(batch.size());
//     ddp.backward(loss_of(ddp.forward(batch)), weight);
//     step();
//   }
//   join.finish(step);
//
// In finish() a rank runs a shadow of each pass that other ranks run: its gradients are zero, with the weight 0. The
// averaged gradients are therefore the mean over the samples of the ranks that still have data. Then it takes the same
// step as they do, so parameters and the optimizer's state stay equal on all ranks, and nothing is broadcast at the
// end. `step` may use any optimizer, also a ShardedOptimizer, and any collective that all ranks call in each step.
//
// Gradients may be cleared after each step, or before the first pass of the next one. So a shadow makes the gradients
// of an averaged pass undefined before it begins. It keeps what this rank has accumulated inside no_sync since its last
// averaged pass, because that is part of the next average. Averages of several passes cannot be added up.
//
// If buffers are broadcast (DdpOptions::broadcast_buffers), they come from the lowest rank that had data in the pass,
// instead of from rank 0. The buffers of a rank without data are as old as the last broadcast.
//
// Every pass takes one more all-reduce, of a few numbers and one for each rank. All ranks use a Join in the same
// passes, from one thread each. A rank that ends without finish() leaves the others waiting until they see that it has
// left its group, or until the group's time-out. Both are a c10::DistBackendError that names the rank.
//
// Differences from PyTorch's Join:
//   - It takes one reducer. For several modules that run in one pass, wrap a module that contains them.
//   - Gradients are the mean over samples. PyTorch divides their sum by a number of ranks.
//   - A rank without data steps its optimizer in `after_pass`. PyTorch broadcasts the parameters at the end, and
//     shadows only optimizers that are sharded.
//   - There is no throw_on_early_termination.
// As in PyTorch, collectives in a module's forward, for instance of statistics, are not shadowed.
class NARROWCAST_EXPORT Join {
 public:
  // `reducer` outlives this object. Throws c10::ValueError, on all ranks,
  //   - for a hook that lets replicas differ, such as post_local_sgd: it does not average all gradients of a step;
  //   - with find_unused_parameters or static_graph, because a shadow of a pass does not know which parameters it uses.
  explicit Join(GradientReducer& reducer);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // A collective, before the forward pass of `samples` samples of this rank, at least 1. Returns the weight for
  // DistributedDataParallel::backward: samples of this rank / samples of all ranks in this pass. Call it inside the
  // no_sync guard of the pass, if it has one: forward throws c10::ValueError if a pass announced here as averaged is
  // inside no_sync, or the opposite. Throws c10::ValueError on all ranks if a rank gives fewer than 1 sample, or if
  // only some ranks are inside no_sync, and c10::DistBackendError if a peer fails.
  double begin_pass(int64_t samples);

  // A collective, once this rank has no data left. Runs a shadow of each pass of the other ranks, and calls
  // `after_pass` after each pass that averages, which must do what the other ranks do after theirs. Returns the number
  // of passes that averaged, once all ranks have called finish(). Call it outside no_sync: throws c10::ValueError on
  // all ranks otherwise. Throws what begin_pass, backward and `after_pass` throw.
  int64_t finish(const std::function<void()>& after_pass);

 private:
  // The ranks that have data announce it before a pass.
  struct Pass {
    double samples = 0;    // of all ranks; 0: no rank has data
    bool averages = true;  // else it is inside no_sync
  };
  Pass meet(std::optional<int64_t> samples) const;

  GradientReducer& reducer_;
};

}  // namespace narrowcast

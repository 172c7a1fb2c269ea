// Checks that all ranks average the gradients of the same backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include <narrowcast/module_state.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/reducer/backward_watch.h"

namespace narrowcast {

// Counts a model's forward passes. Ranks compare their counts (ops/comm/groups/pass_tags.h) when the first gradient of
// a backward pass is ready, and no bucket is sent before the tags are known to be equal. Otherwise ranks in different
// passes could have different buckets:
//   - A collective that another rank never joins would wait for the time-out, even when the group is destroyed.
//   - A message that is too long would end its receiver's process.
// A hook waits for the tags before its first bucket, while other gradients are computed. Without a hook, and if several
// models share a group, the pass waits before the Reducer takes the first gradient.
//
// Ranks compare nothing in a group of one, on GPUs, and in groups without a backend for CPU tensors.
class PassCheck {
 public:
  // All ranks create one for their next model of `group`, in the same order. `trainable` are the model's parameters
  // that get gradients, at least one.
  PassCheck(const std::vector<NamedTensor>& trainable, const ProcessGroupPtr& group);
  ~PassCheck();
  PassCheck(const PassCheck&) = delete;
  PassCheck& operator=(const PassCheck&) = delete;

  // For a hook: returns a function that must be called before the hook gets a bucket; null if ranks compare nothing. It
  // waits for the comparison. If buckets of several models come in one backward pass, it compares each bucket.
  std::function<void(const c10d::GradBucket&)> bucket_check() const;

  // Must be called when a forward pass that computes gradients begins.
  void count();

  // Compares which forward pass the ranks run, and waits for all of them. Called before a collective at the start of a
  // forward pass. Throws the same errors as the backward pass after arm().
  void compare() const;

  // The next backward pass that reaches any of the parameters is compared. It throws c10::ValueError on all ranks if
  // the ranks' passes differ, and c10::DistBackendError if a peer or the network fails. The group is not usable
  // afterwards.
  void arm();

  // Seconds for which backward passes have waited for the other ranks' tags since the last call; waits after a pass's
  // last gradient are not included. Call it between passes.
  double take_waited_seconds();

  // Called instead of compare(), arm() and the backward pass on a rank that cannot run the pass. Waits until all ranks
  // have compared it, and throws a c10::ValueError with `reason` on all of them. The group remains usable if all ranks
  // refuse. Returns if ranks compare nothing.
  void refuse(const std::string& reason) const;

 private:
  struct State;
  int64_t pass_ = 0;
  std::shared_ptr<State> state_;  // Null if ranks compare nothing; then there are no hooks either.
  std::unique_ptr<AccumulatorHooks> hooks_;
};

}  // namespace narrowcast

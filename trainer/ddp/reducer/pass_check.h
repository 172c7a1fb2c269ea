// Whether all ranks average the gradients of the same backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/module_state.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Counts a model's forward passes, and lets ranks compare where they are (ops/comm/groups/pass_tags.h) when the first
// gradient of a backward pass is there. No bucket is sent before the tags are known to be equal: ranks in different
// passes may have other buckets, and a collective that another rank never joins would wait for the time-out, also when
// the group is destroyed; a message that is too long would end its receiver's process. A hook waits for the tags before
// its first bucket, while other gradients were computed. The Reducer by itself, without a hook, and models that share a
// group wait before the first gradient is taken.
//
// Ranks compare nothing in a group of one, on GPUs, and in groups without a backend for CPU tensors.
class PassCheck {
 public:
  // All ranks make one for their next model of `group`, in the same order. `trainable`: its parameters that get
  // gradients; at least one.
  PassCheck(const std::vector<NamedTensor>& trainable, const ProcessGroupPtr& group);
  ~PassCheck();
  PassCheck(const PassCheck&) = delete;
  PassCheck& operator=(const PassCheck&) = delete;

  // The hook that does the same and, where buckets of several models come in one backward pass, compares each bucket
  // before `hook` gets it.
  std::shared_ptr<hooks::CommHook> checked(std::shared_ptr<hooks::CommHook> hook) const;

  // A forward pass that computes gradients begins.
  void count();

  // Compares which forward pass the ranks run, and waits for all of them: before a collective that a forward pass
  // begins with. Throws as the backward pass after arm().
  void compare() const;

  // The next backward pass that reaches any of the parameters is compared. It ends with c10::ValueError on all ranks if
  // they differ, and with c10::DistBackendError if a peer or the network fails. The group is not usable afterwards.
  void arm();

  // Seconds for which backward passes have waited for the other ranks' tags since the last call, before their last
  // gradient was there. Between passes.
  double take_waited_seconds();

  // Takes the place of compare(), arm() and the backward pass on a rank that cannot run the pass: waits until all ranks
  // have compared it, and throws a c10::ValueError with `reason` on all of them. The group remains usable if all ranks
  // refuse. Returns where ranks compare nothing.
  void refuse(const std::string& reason) const;

 private:
  struct State;
  class CheckedHook;
  int64_t pass_ = 0;
  std::shared_ptr<State> state_;  // Null where ranks compare nothing; then there are no hooks, either.
  std::unique_ptr<AccumulatorHooks> hooks_;
};

}  // namespace narrowcast

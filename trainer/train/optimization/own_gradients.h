// Finds the ranks whose gradients were not finite, although the gradients of all ranks are averaged.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "trainer/ddp/reducer/backward_watch.h"

namespace narrowcast::training {

// Checks this rank's own gradients as a backward pass produces them, while they are in the cache: after averaging, one
// rank's NaN is on all ranks. It costs one sum per parameter, and does not wait for a GPU.
class OwnGradients {
 public:
  // Must be made before a Reducer watches the parameters, since that averages in place.
  explicit OwnGradients(const std::vector<at::Tensor>& parameters);

  // Starts a step: only gradients of later backward passes count.
  void begin_step();
  // Whether all gradients of the step were finite. Waits for a GPU.
  bool were_finite() const;

 private:
  void look_at(size_t parameter);

  const std::vector<at::Tensor> parameters_;
  std::atomic<bool> found_ = false;  // a value that is not finite, on the CPU; written by the thread of the pass
  std::vector<at::Tensor> sums_;     // on a GPU: float64 scalars, not finite if an element was not
  AccumulatorHooks hooks_;           // the last member: it uses all others
};

}  // namespace narrowcast::training

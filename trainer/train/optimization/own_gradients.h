// Whose gradients were not finite, where those of all ranks are averaged.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast::training {

// Looks at this rank's own gradients as a backward pass hands them out, while they are in the cache: once they are
// averaged, a NaN of one rank is a NaN of all. One sum for each parameter; a GPU is not waited for.
class OwnGradients {
 public:
  // Before a Reducer watches the parameters, which averages in place.
  explicit OwnGradients(const std::vector<at::Tensor>& parameters);

  // From here on counts what backward passes hand out.
  void begin_step();
  // Whether all of it was finite. Waits for a GPU.
  bool were_finite() const;

 private:
  void look_at(size_t parameter);

  const std::vector<at::Tensor> parameters_;
  std::atomic<bool> found_ = false;  // something that is not finite, on the CPU; written by the thread of the pass
  std::vector<at::Tensor> sums_;     // on a GPU: float64 scalars, not finite where an element was not
  AccumulatorHooks hooks_;           // the last: it uses all that is above
};

}  // namespace narrowcast::training

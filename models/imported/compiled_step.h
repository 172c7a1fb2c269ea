// The autograd functions of a compiled training step, which computes a loss and all gradients together.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <set>
#include <vector>

namespace narrowcast::models {

// The loss, with the given gradients: its backward pass gives gradients[i] to parameters[i]. It can run once.
at::Tensor with_gradients(const at::Tensor& loss, std::vector<at::Tensor> gradients,
                          const std::vector<at::Tensor>& parameters);

// A loss that is NaN until its backward pass calls `run` with the gradient of the loss. `run` returns the loss, and
// gives the parameters their gradients itself. The backward pass can run once.
using RunStep = std::function<at::Tensor(float factor)>;
at::Tensor deferred_loss(RunStep run);

// Gives parameters their gradients while a backward pass runs, so that what waits for them, such as their exchange,
// begins. Small gradients wait for others, since each call of autograd costs some microseconds.
class GradientHandOver {
 public:
  // What happens to a gradient's memory later in the step.
  enum class Memory { kKept, kReused };

  // A gradient may share memory with one of `others`, such as the parameters.
  GradientHandOver(float factor, const std::vector<at::Tensor>& others);

  // The parameter keeps the gradient itself if its memory is kept and shared with no other tensor. Else it gets a copy.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, Memory memory);
  // Gives the parameters the gradients that still wait.
  void finish();

 private:
  at::Tensor own(const at::Tensor& gradient, Memory memory);

  const float factor_;
  std::set<const void*> memories_;  // of other tensors, and of gradients that were handed over
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  size_t bytes_ = 0;
};

}  // namespace narrowcast::models

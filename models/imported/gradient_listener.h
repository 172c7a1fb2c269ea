// The operator by which a compiled training step reports that a gradient is complete, while it computes the next ones:
//
//   narrowcast::gradient_ready(Tensor gradient, int parameter) -> Tensor
//
// `parameter` is the parameter's number among the trained ones, in the order of the package's manifest. The result is
// an empty tensor. It is one of the step's outputs: without it, a compiler would remove the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>

namespace narrowcast::models {

// Called with each gradient. The step may use the gradient's memory for something else after the call.
using TakeGradient = std::function<void(int64_t parameter, const at::Tensor& gradient)>;

// While it lives, the operator's calls on this thread are passed to `take`; without one they do nothing. Listeners do
// not nest.
class GradientListener {
 public:
  explicit GradientListener(TakeGradient take);
  ~GradientListener();
  GradientListener(const GradientListener&) = delete;
  GradientListener& operator=(const GradientListener&) = delete;

  // Passes a gradient on. Compiled code would turn an error into a number: it is kept, and later gradients are ignored.
  void hear(int64_t parameter, const at::Tensor& gradient);

  // Throws the error that `take` threw, if there was one.
  void rethrow_failure() const;

 private:
  TakeGradient take_;
  std::exception_ptr failure_;
};

}  // namespace narrowcast::models

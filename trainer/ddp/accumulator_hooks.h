// What a backward pass tells of the gradients of parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace narrowcast {

// While it lives, `on_gradient(i)` is called whenever a backward pass has added to the gradient of parameters[i], on
// the thread of that pass: before what is watched by those who came later, e.g. a Reducer.
class AccumulatorHooks {
 public:
  AccumulatorHooks(const std::vector<at::Tensor>& parameters, const std::function<void(size_t)>& on_gradient);
  ~AccumulatorHooks();
  AccumulatorHooks(const AccumulatorHooks&) = delete;
  AccumulatorHooks& operator=(const AccumulatorHooks&) = delete;

 private:
  struct List;
  std::unique_ptr<List> list_;
};

}  // namespace narrowcast

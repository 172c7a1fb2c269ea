// What backward passes tell of the gradients of parameters: that they are there, and when.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
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

// Watches backward passes. Gradients on the CPU are ready when the pass hands them out. Not thread-safe, but for the
// passes themselves.
class GradientTimes {
 public:
  explicit GradientTimes(const std::vector<at::Tensor>& parameters);

  // From here to end_pass() one backward pass is watched.
  void begin_pass();
  // Does nothing where none is; a pass that reached no parameter does not count.
  void end_pass();

  // How many passes have been watched to their end.
  int64_t passes() const;

  // Of each parameter, the seconds from a pass's first gradient to its own: the least of all passes, 0 where there
  // were none.
  const std::vector<double>& seconds() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  AccumulatorHooks hooks_;
};

}  // namespace narrowcast

// When gradients become ready.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/ddp/accumulator_hooks.h"

namespace narrowcast {

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

// Watches the backward passes whose gradients a Reducer averages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Counts backward passes whose gradients are reduced, and observes which parameters they reach. The Reducer publishes
// neither, so this class watches the same events as the Reducer. Create it before the Reducer: a pass in which the
// Reducer waits is then already counted. Not thread-safe, except that count() is safe while a backward pass runs.
class BackwardWatch {
 public:
  explicit BackwardWatch(const std::vector<at::Tensor>& parameters);

  // The next backward pass that reaches any of the parameters is counted, once.
  void arm();

  // Number of passes counted so far.
  int64_t count() const;
  // Continues to count from `count`.
  void set_count(int64_t count);

  // Whether the last backward pass has not ended, because an exception passed through it, possibly one of the Reducer.
  // False before the first pass.
  bool has_not_ended() const;

  // Indices of the expected parameters that no backward pass has reached since the last arm().
  std::vector<size_t> unreached() const;
  // From now on only parameters that the last pass reached are expected; before, all are.
  void expect_reached();

 private:
  struct State;
  std::shared_ptr<State> state_;
  AccumulatorHooks hooks_;
};

}  // namespace narrowcast

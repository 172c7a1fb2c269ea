// Watches the backward passes whose gradients a Reducer averages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {

// Counts backward passes whose gradients are reduced, and observes which parameters they reach. The Reducer does not
// publish either; this class watches the same events as the Reducer does. Make it before the Reducer: then a pass that
// the Reducer waits in is known here. Not thread-safe, except that count() is safe while a backward pass runs.
class BackwardWatch {
 public:
  explicit BackwardWatch(const std::vector<at::Tensor>& parameters);

  // The next backward pass that reaches any of the parameters counts, once.
  void arm();

  // How many have counted.
  int64_t count() const;
  // Continues to count from there.
  void set_count(int64_t count);

  // Whether the last backward pass has not ended: an exception passed through it, be it from the Reducer. False before
  // the first one.
  bool has_not_ended() const;

  // Indices of the expected parameters that no backward pass has reached since the last arm().
  std::vector<size_t> unreached() const;
  // From now on only those parameters are expected that are reached now; before, all.
  void expect_reached();

 private:
  struct State;
  std::shared_ptr<State> state_;
  AccumulatorHooks hooks_;
};

}  // namespace narrowcast

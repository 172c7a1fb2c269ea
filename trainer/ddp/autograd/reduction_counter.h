// Counts backward passes whose gradients are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ops/export.h"

namespace torch::autograd {
struct Node;
}

namespace narrowcast {

// The Reducer does not say when it reduces without a hook; this watches the same
// events as it does. Safe to read while a backward pass runs.
class NARROWCAST_EXPORT ReductionCounter {
 public:
  explicit ReductionCounter(const std::vector<at::Tensor>& parameters);
  ~ReductionCounter();
  ReductionCounter(const ReductionCounter&) = delete;
  ReductionCounter& operator=(const ReductionCounter&) = delete;

  // The next backward pass that reaches any of the parameters counts, once.
  void arm();

  int64_t count() const;
  // Goes on counting from there.
  void set_count(int64_t count);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;
};

}  // namespace narrowcast

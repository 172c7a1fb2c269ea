// Counts backward passes whose gradients are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace narrowcast {

// The Reducer does not say when it reduces without a hook; this watches the same
// events as it does. Safe to read while a backward pass runs.
class ReductionCounter {
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
  struct Hooks;
  std::unique_ptr<Hooks> hooks_;
};

}  // namespace narrowcast

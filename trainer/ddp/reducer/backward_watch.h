// Observers of backward passes: each gradient, its time, and the passes that a Reducer averages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace narrowcast {

// During its lifetime, `on_gradient(i)` is called whenever a backward pass has added to the gradient of parameters[i],
// on the thread of that pass. It is called before the hooks of observers that were added later, e.g. of a Reducer.
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

// Measures when gradients become ready in backward passes. Gradients on the CPU are ready when the pass delivers them.
// Not thread-safe, except for the calls by backward passes.
class GradientTimes {
 public:
  explicit GradientTimes(const std::vector<at::Tensor>& parameters);

  // One backward pass between begin_pass() and end_pass() is measured.
  void begin_pass();
  // Does nothing if no pass was begun. A pass that reached no parameter does not count.
  void end_pass();

  // Number of passes measured to their end.
  int64_t passes() const;

  // Returns for each parameter the seconds from a pass's first gradient to its gradient: the least of all passes, 0
  // without passes.
  const std::vector<double>& seconds() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  AccumulatorHooks hooks_;
};

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

// How large buckets should be: a pure function of when gradients become ready, which GradientTimes watches, and of what
// it takes to average them.
//
// A bucket can go when its last gradient is there and the buckets before it are gone; one is averaged after the other.
// Small buckets leave little to send when the backward pass ends; but each costs its latency, which large ones spare.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <narrowcast/gradient_reducer.h>

namespace narrowcast {

// In which sizes of buckets are given.
inline constexpr double kBytesOfMib = 1024.0 * 1024.0;

// Buckets as the Reducer takes them: indices into the list of parameters.
using BucketIndices = std::vector<std::vector<size_t>>;

// One backward pass, parameter by parameter.
struct BackwardPass {
  std::vector<int64_t> numel;         // elements of each gradient
  std::vector<double> ready_seconds;  // from the pass's first gradient to this one, >= 0

  // From the first gradient to the last.
  double seconds() const;
};

// Parameters in the order in which their gradients become ready, given when; equal ones in their own.
std::vector<size_t> ready_order(const std::vector<double>& ready_seconds);

// The buckets that a size gives.
struct BucketLayout {
  double cap_mb = 0;  // MiB
  BucketIndices buckets;
};

// The sizes that come into question for gradients of so many bytes, in MiB and ascending: 1, 2, 3, 6, 12 and the 25 of
// DdpOptions, as far as they are less than all gradients, and last what holds these.
std::vector<double> bucket_sizes(int64_t gradient_bytes);

// Seconds in which a bucket of so many elements is averaged: a hooks::ExchangeCost, or what a hook predicts.
using ExchangeSeconds = std::function<double(int64_t numel)>;

// Seconds from the pass's first gradient to the last average, with these buckets.
double seconds_until_averaged(const BucketIndices& buckets, const BackwardPass& pass, const ExchangeSeconds& exchange);

// Chooses, of layouts given from small to large, the largest with which averages are there at most 1% later than with
// the best. Processors that the exchange takes from the backward pass are taken with every size alike, and so left out.
BucketChoice choose_bucket_size(const std::vector<BucketLayout>& layouts, const BackwardPass& pass,
                                const ExchangeSeconds& exchange);

// What backward passes tell of the gradients of parameters: that they are there, and when.

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

  // Returns the seconds from a pass's first gradient to each parameter's own: the least of all passes, 0 if there were
  // none.
  const std::vector<double>& seconds() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  AccumulatorHooks hooks_;
};

}  // namespace narrowcast

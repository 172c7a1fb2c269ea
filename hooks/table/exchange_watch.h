// Compares the time of all-reduces in a training with their prediction.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

namespace narrowcast::hooks {

// Predicted cost of consecutive all-reduces; the same on all ranks.
struct PredictedExchanges {
  double seconds = 0;
  double sent = 0;  // The link's part of `seconds`, > 0; the rest is codecs and the node's memory.
  int64_t count = 0;

  PredictedExchanges& operator+=(const PredictedExchanges& more);

  // The link's actual time divided by its predicted time, if the all-reduces took `took` seconds. Returns 1 if `took`
  // differs from the prediction only by noise. One all-reduce takes the link's part plus the rest. If it takes less
  // than the rest alone, the rest was overestimated, which tells nothing about the link: returns 1. With several, two
  // are in flight at once, so the link may overlap with the processors' work. The factor then lies between two values;
  // if 1 lies between them, returns 1.
  double link_factor(double took) const;
};

// Measures how long the all-reduces of each step take on one rank. In each step it looks at the last stretch of time
// during which something was in flight, if that is at least half of the predicted step and something was sent.
class ExchangeWatch {
 public:
  static constexpr double kNothingSeen = std::numeric_limits<double>::max();

  virtual ~ExchangeWatch() = default;

  // An all-reduce of a bucket on `device` begins. Returns its number.
  virtual int64_t begin(const PredictedExchanges& predicted, at::Device device) = 0;

  // That all-reduce has ended. Thread-safe, because futures complete on other threads.
  virtual void end(int64_t exchange) = 0;

  // It has failed, so that its step does not count. Thread-safe; does not throw.
  virtual void give_up(int64_t exchange) = 0;

  // Ends a step whose all-reduces have this prediction together.
  virtual void end_step(const PredictedExchanges& step) = 0;

  // The least link_factor since the last call; kNothingSeen if there was none.
  virtual double take_least() = 0;
};

// For all-reduces on the CPU. `now` returns seconds and is thread-safe.
std::unique_ptr<ExchangeWatch> watch_by_clock(std::function<double()> now);

// For all-reduces on the streams of a device; steps with buckets on another device do not count. begin() and end()
// record events on the current stream, for end() one that waits for the all-reduce. The host never waits: a step counts
// as soon as its events are reached. A CUDA graph cannot record it.
std::unique_ptr<ExchangeWatch> watch_streams(at::Device device);

}  // namespace narrowcast::hooks

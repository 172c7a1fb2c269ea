// Example results of measurements.
#pragma once

#include <string>
#include <vector>

#include "ops/common/median.h"
#include "trainer/train/bench/results.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {

// The times of one bucket of 25 MiB.
inline HookTime iterations_of(const std::string& hook, const std::vector<double>& milliseconds, int64_t payload_bytes) {
  return {.hook = hook,
          .bucket_bytes = 25 << 20,
          .buckets = 1,
          .milliseconds = milliseconds,
          .payload_bytes = payload_bytes,
          .payload_bytes_per_node = 2 * payload_bytes,
          .median_ms = median(milliseconds)};
}

// Equal times, in as many iterations as a comparison needs.
inline HookTime time_of(const std::string& hook, double median_ms, int64_t payload_bytes) {
  return iterations_of(hook, std::vector<double>(kFewestForInterval, median_ms), payload_bytes);
}

// Four buckets in flight.
inline HookTime four_of(const std::string& hook, double median_ms, int64_t payload_bytes) {
  HookTime time = time_of(hook, median_ms, payload_bytes);
  time.buckets = 4;
  return time;
}

}  // namespace narrowcast::bench

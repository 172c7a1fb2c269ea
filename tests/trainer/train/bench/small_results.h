// Results by hand.
#pragma once

#include <string>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// One bucket of 25 MiB.
inline HookTime time_of(const std::string& hook, double median_ms, int64_t payload_bytes) {
  return {.hook = hook,
          .bucket_bytes = 25 << 20,
          .buckets = 1,
          .milliseconds = {median_ms},
          .payload_bytes = payload_bytes,
          .median_ms = median_ms};
}

inline HookTime four_of(const std::string& hook, double median_ms, int64_t payload_bytes) {
  HookTime time = time_of(hook, median_ms, payload_bytes);
  time.buckets = 4;
  return time;
}

}  // namespace narrowcast::bench

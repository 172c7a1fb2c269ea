#include "trainer/train/bench/comparison.h"

#include <algorithm>

namespace narrowcast::bench {

std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference) {
  const auto found = std::find_if(results.hooks.begin(), results.hooks.end(), [&](const HookTime& other) {
    return other.hook == reference && other.bucket_bytes == time.bucket_bytes && other.buckets == time.buckets;
  });
  return found == results.hooks.end() ? std::nullopt : std::optional(found->median_ms / time.median_ms);
}

std::optional<double> share_of_link(const BenchResults& results, const HookTime& time) {
  if (!results.given_gbit && !results.link) {
    return std::nullopt;
  }
  const double gbit_per_second = results.given_gbit ? *results.given_gbit : results.link->gbit_per_second;
  const double milliseconds = 8e-6 * static_cast<double>(time.payload_bytes) / gbit_per_second;
  return milliseconds / time.median_ms;
}

}  // namespace narrowcast::bench

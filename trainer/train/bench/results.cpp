#include "trainer/train/bench/results.h"

#include <algorithm>
#include <map>
#include <utility>

#include "hooks/hook_table.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {
namespace {

double gb_per_second(double bytes, double milliseconds) { return bytes / (1e6 * milliseconds); }

// x: bytes, y: milliseconds.
HookFit make_fit(const HookTime& time, const std::vector<Point>& points, const Line& line) {
  return {.hook = time.hook,
          .buckets = time.buckets,
          .sizes = static_cast<int64_t>(points.size()),
          .latency_us = 1e3 * line.intercept,
          .gb_per_second = line.slope > 0 ? std::optional(gb_per_second(1, line.slope)) : std::nullopt,
          .worst_residual = line.worst_residual};
}

}  // namespace

bool averages(const std::string& hook) { return hooks::hook_row(hook).keeps_replicas_equal; }

int64_t elements_of(int64_t bucket_bytes) { return bucket_bytes / static_cast<int64_t>(sizeof(float)); }

double averaged_bytes(const HookTime& time) { return static_cast<double>(time.bucket_bytes * time.buckets); }

double algorithm_bandwidth(const HookTime& time) { return gb_per_second(averaged_bytes(time), time.median_ms); }

double bus_bandwidth(const HookTime& time, int64_t ranks) {
  return algorithm_bandwidth(time) * 2 * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

double wire_bandwidth(const HookTime& time) {
  return gb_per_second(static_cast<double>(time.payload_bytes), time.median_ms);
}

const HookTime* same_case(const BenchResults& results, const HookTime& time, const std::string& hook) {
  const auto found = std::find_if(results.hooks.begin(), results.hooks.end(), [&](const HookTime& other) {
    return other.hook == hook && other.bucket_bytes == time.bucket_bytes && other.buckets == time.buckets;
  });
  return found == results.hooks.end() ? nullptr : &*found;
}

std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference) {
  const HookTime* const other = same_case(results, time, reference);
  return other == nullptr ? std::nullopt : std::optional(other->median_ms / time.median_ms);
}

std::optional<double> share_of_link(const BenchResults& results, const HookTime& time) {
  if (!results.given_gbit && !results.link) {
    return std::nullopt;
  }
  const double gbit_per_second = results.given_gbit ? *results.given_gbit : results.link->gbit_per_second;
  const double milliseconds = 8 * static_cast<double>(time.payload_bytes) / (1e6 * gbit_per_second);
  return milliseconds / time.median_ms;
}

std::vector<HookFit> fit_hooks(const BenchResults& results) {
  std::vector<std::pair<const HookTime*, std::vector<Point>>> series;  // the first time of each, and all points
  std::map<std::pair<std::string, int64_t>, size_t> index;
  for (const HookTime& time : results.hooks) {
    const auto [place, is_new] = index.try_emplace({time.hook, time.buckets}, series.size());
    if (is_new) {
      series.push_back({&time, {}});
    }
    series[place->second].second.push_back({averaged_bytes(time), time.median_ms});
  }
  std::vector<HookFit> fits;
  for (const auto& [time, points] : series) {
    if (const auto line = fit_line(points)) {
      fits.push_back(make_fit(*time, points, *line));
    }
  }
  return fits;
}

}  // namespace narrowcast::bench

#include "trainer/train/bench/results.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <narrowcast/wire_format.h>
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/run_bench.h"
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

double min_ms(const HookTime& time) { return *std::min_element(time.milliseconds.begin(), time.milliseconds.end()); }

double p99_ms(const HookTime& time) { return quantile(time.milliseconds, 0.99); }

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

double share_of_memory(const KernelRates& kernels, WireFormat format, double rate) {
  if (kernels.device == c10::DeviceType::CPU) {
    return rate / kernels.memory;
  }
  constexpr int64_t kMany = int64_t{1} << 20;  // A number of elements that fills whole blocks.
  const double in_float32 = static_cast<double>(encoded_size(kMany, WireFormat::kFp32));
  return rate * (1 + static_cast<double>(encoded_size(kMany, format)) / in_float32) / kernels.memory;
}

std::vector<HookFit> fit_hooks(const BenchResults& results) {
  std::vector<std::pair<const HookTime*, std::vector<Point>>> series;  // a first time, and all points
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

namespace {

using nlohmann::json;

json link_json(const LinkRate& link) {
  return {{"gbit_per_second", link.gbit_per_second},
          {"message_bytes", link.message_bytes},
          {"round_trip_us", link.round_trip_us}};
}

json kernels_json(const KernelRates& kernels) {
  auto formats = json::object();
  for (const FormatRates& format : kernels.formats) {
    formats[std::string(to_string(format.format))] = {{"encode_gb_per_second", format.encode},
                                                      {"decode_gb_per_second", format.decode}};
  }
  const bool on_cpu = kernels.device == c10::DeviceType::CPU;
  return {{on_cpu ? "memory_read_gb_per_second" : "memory_copy_gb_per_second", kernels.memory}, {"formats", formats}};
}

json number_or_null(const std::optional<double>& number) { return number ? json(*number) : json(nullptr); }

json hook_json(const BenchResults& results, const HookTime& time) {
  json hook{{"hook", time.hook},
            {"bucket_bytes", time.bucket_bytes},
            {"elements", elements_of(time.bucket_bytes)},
            {"buckets", time.buckets},
            {"min_ms", min_ms(time)},
            {"median_ms", time.median_ms},
            {"p99_ms", p99_ms(time)},
            {"milliseconds", time.milliseconds},
            {"speed_up", number_or_null(speed_up(results, time, kReference))},
            {"algbw_gb_per_second", algorithm_bandwidth(time)},
            {"busbw_gb_per_second", bus_bandwidth(time, results.ranks)},
            {"wire_gb_per_second", wire_bandwidth(time)},
            {"share_of_link", number_or_null(share_of_link(results, time))},
            {"payload_bytes", time.payload_bytes},
            {"payload_bytes_per_node", time.payload_bytes_per_node}};
  if (!time.decision.empty()) {
    hook["decision"] = time.decision;
  }
  return hook;
}

json hooks_json(const BenchResults& results) {
  auto hooks = json::array();
  for (const HookTime& time : results.hooks) {
    hooks.push_back(hook_json(results, time));
  }
  return hooks;
}

json exactness_json(const BenchResults& results) {
  auto hooks = json::array();
  for (const HookExactness& exactness : results.exactness) {
    hooks.push_back({{"hook", exactness.hook},
                     {"bucket_bytes", exactness.bucket_bytes},
                     {"elements", elements_of(exactness.bucket_bytes)},
                     {"squared_relative_error", exactness.squared_relative_error},
                     {"outside_tolerance", exactness.outside_tolerance},
                     {"replicas_equal", exactness.replicas_equal}});
  }
  return hooks;
}

json fits_json(const BenchResults& results) {
  auto fits = json::array();
  for (const HookFit& fit : fit_hooks(results)) {
    fits.push_back({{"hook", fit.hook},
                    {"buckets", fit.buckets},
                    {"sizes", fit.sizes},
                    {"latency_us", fit.latency_us},
                    {"gb_per_second", number_or_null(fit.gb_per_second)},
                    {"worst_residual", fit.worst_residual}});
  }
  return fits;
}

std::string name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNothingToCompare:
      return "nothing_to_compare";
    case Verdict::kTooFewIterations:
      return "too_few_iterations";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kNoHookPays:
      return "no_hook_pays";
    case Verdict::kHookPays:
      return "hook_pays";
  }
  throw std::logic_error("no such verdict");
}

json interval_json(const Interval& interval) { return {interval.lower, interval.upper}; }

json recommendation_json(const Recommendation& recommendation) {
  json object = {{"verdict", name_of(recommendation.verdict)}, {"least_iterations", kFewestForInterval}};
  if (recommendation.verdict != Verdict::kNothingToCompare) {
    object["fastest_hook"] = recommendation.fastest;
    object["speed_up"] = recommendation.speed_up;
  }
  if (recommendation.interval) {
    object["speed_up_interval"] = interval_json(*recommendation.interval);
  }
  if (recommendation.verdict == Verdict::kUndecided) {
    object["leader"] = recommendation.leader;
    for (const Rival& rival : recommendation.undecided) {
      object["rivals"][rival.hook] = interval_json(rival.speed_up);
    }
  }
  return object;
}

}  // namespace

json to_json(const BenchOptions& options, const BenchResults& results) {
  const Recommendation recommendation = recommend(results);
  json object = {{"version", options.version},
                 {"ranks", results.ranks},
                 {"network", results.network},
                 {"device", c10::DeviceTypeName(results.device, /*lower_case=*/true)},
                 {"nodes", {{"count", results.ranks_per_node.size()}, {"ranks_per_node", results.ranks_per_node}}},
                 {"levels", results.levels},
                 {"iterations", options.iterations},
                 {"warmup_iterations", options.warmup_iterations},
                 {"reference", kReference},
                 {"hooks", hooks_json(results)},
                 {"fits", fits_json(results)},
                 {"payload_bytes_sent", results.payload_bytes_sent},
                 {"measuring_bytes_sent", results.measuring_bytes_sent},
                 {"recommendation", recommendation_json(recommendation)},
                 {"recommended_hook", recommendation.hook}};
  if (!results.connections.empty()) {
    object["connections"] = results.connections;
  }
  if (!results.why_one_level.empty()) {
    object["why_one_level"] = results.why_one_level;
  }
  if (results.link) {
    object["link"] = link_json(*results.link);
  }
  if (results.given_gbit) {
    object["given_gbit_per_second"] = *results.given_gbit;
  }
  if (results.kernels) {
    object["kernels"] = kernels_json(*results.kernels);
  }
  if (!results.exactness.empty()) {
    object["exactness"] = exactness_json(results);
  }
  return object;
}

}  // namespace narrowcast::bench

#include "trainer/train/bench/results_json.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include <narrowcast/wire_format.h>
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/bench/statistics.h"

namespace narrowcast::bench {
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
  return {{"memory_read_gb_per_second", kernels.memory_read}, {"formats", formats}};
}

json number_or_null(const std::optional<double>& number) { return number ? json(*number) : json(nullptr); }

json hook_json(const BenchResults& results, const HookTime& time) {
  return {{"hook", time.hook},
          {"bucket_bytes", time.bucket_bytes},
          {"elements", elements_of(time.bucket_bytes)},
          {"buckets", time.buckets},
          {"min_ms", *std::min_element(time.milliseconds.begin(), time.milliseconds.end())},
          {"median_ms", time.median_ms},
          {"p99_ms", quantile(time.milliseconds, 0.99)},
          {"milliseconds", time.milliseconds},
          {"algbw_gb_per_second", algorithm_bandwidth(time)},
          {"busbw_gb_per_second", bus_bandwidth(time, results.ranks)},
          {"wire_gb_per_second", wire_bandwidth(time)},
          {"share_of_link", number_or_null(share_of_link(results, time))},
          {"payload_bytes", time.payload_bytes},
          {"payload_bytes_per_node", time.payload_bytes_per_node}};
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
                 {"nodes", {{"count", results.ranks_per_node.size()}, {"ranks_per_node", results.ranks_per_node}}},
                 {"iterations", options.iterations},
                 {"warmup_iterations", options.warmup_iterations},
                 {"hooks", hooks_json(results)},
                 {"fits", fits_json(results)},
                 {"payload_bytes_sent", results.payload_bytes_sent},
                 {"recommendation", recommendation_json(recommendation)},
                 {"recommended_hook", recommendation.hook}};
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

#include "trainer/train/bench/results_json.h"

#include <string>

#include <narrowcast/wire_format.h>
#include "trainer/train/bench/recommendation.h"

namespace narrowcast::bench {
namespace {

nlohmann::json link_json(const LinkRate& link) {
  return {{"gbit_per_second", link.gbit_per_second},
          {"message_bytes", link.message_bytes},
          {"round_trip_us", link.round_trip_us}};
}

nlohmann::json kernels_json(const KernelRates& kernels) {
  auto formats = nlohmann::json::object();
  for (const FormatRates& format : kernels.formats) {
    formats[std::string(to_string(format.format))] = {{"encode_gb_per_second", format.encode},
                                                      {"decode_gb_per_second", format.decode}};
  }
  return {{"memory_read_gb_per_second", kernels.memory_read}, {"formats", formats}};
}

nlohmann::json hooks_json(const BenchResults& results) {
  auto hooks = nlohmann::json::array();
  for (const HookTime& time : results.hooks) {
    hooks.push_back({{"hook", time.hook},
                     {"bucket_bytes", time.bucket_bytes},
                     {"buckets", time.buckets},
                     {"median_ms", time.median_ms},
                     {"milliseconds", time.milliseconds},
                     {"payload_bytes", time.payload_bytes}});
  }
  return hooks;
}

}  // namespace

nlohmann::json to_json(const BenchOptions& options, const BenchResults& results) {
  nlohmann::json json = {{"version", options.version},
                         {"ranks", results.ranks},
                         {"iterations", options.iterations},
                         {"warmup_iterations", options.warmup_iterations},
                         {"hooks", hooks_json(results)},
                         {"payload_bytes_sent", results.payload_bytes_sent},
                         {"recommended_hook", recommend(results).hook}};
  if (results.link) {
    json["link"] = link_json(*results.link);
  }
  if (results.given_gbit) {
    json["given_gbit_per_second"] = *results.given_gbit;
  }
  if (results.kernels) {
    json["kernels"] = kernels_json(*results.kernels);
  }
  return json;
}

}  // namespace narrowcast::bench

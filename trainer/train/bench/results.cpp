#include "trainer/train/bench/results.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "hooks/hook_table.h"
#include "trainer/train/bench/recommendation.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/reporting/formatting.h"

namespace narrowcast::bench {
namespace {

using reporting::TableRow;

std::string percent(double share) { return absl::StrFormat("%.0f%%", 100 * share); }

std::string bucket_text(int64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib >= 1024 ? absl::StrFormat("%g MiB", kib / 1024) : absl::StrFormat("%g KiB", kib);
}

std::string ratio_text(const std::optional<double>& ratio) { return ratio ? absl::StrFormat("%.2f", *ratio) : "-"; }

TableRow row_of(const BenchResults& results, const HookTime& time) {
  const auto share = share_of_link(results, time);
  return {time.hook,
          bucket_text(time.bucket_bytes),
          absl::StrCat(time.buckets),
          absl::StrFormat("%.2f", time.median_ms),
          ratio_text(speed_up(results, time, kReference)),
          ratio_text(speed_up(results, time, kBf16)),
          reporting::format_bytes(static_cast<double>(time.payload_bytes)),
          share ? percent(*share) : "-"};
}

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

bool averages(const std::string& hook) { return hooks::hook_row(hook).keeps_replicas_equal; }

double median(std::vector<double> values) {
  TORCH_CHECK_VALUE(!values.empty(), "values: a median needs at least one");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

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

std::string link_text(const LinkRate& link) {
  return absl::StrFormat(
      "Link: %.2f Gbit/s from each rank to the next, all at once (messages of %s); round trip %.0f us.\n",
      link.gbit_per_second, reporting::format_bytes(static_cast<double>(link.message_bytes)), link.round_trip_us);
}

std::string kernel_table(const KernelRates& kernels) {
  std::vector<TableRow> rows = {{"format", "encode", "of reading", "decode", "of reading"}};
  for (const FormatRates& format : kernels.formats) {
    rows.push_back({std::string(to_string(format.format)), absl::StrFormat("%.1f", format.encode),
                    percent(format.encode / kernels.memory_read), absl::StrFormat("%.1f", format.decode),
                    percent(format.decode / kernels.memory_read)});
  }
  return absl::StrFormat("Kernels, one thread, GB/s of float32; memory is read at %.1f GB/s:\n", kernels.memory_read) +
         reporting::aligned_table(rows, "lrrrr");
}

std::string hook_table(const BenchResults& results) {
  std::vector<TableRow> rows = {{"hook", "bucket", "buckets", "ms", absl::StrCat("x ", kReference),
                                 absl::StrCat("x ", kBf16), "sent per rank", "of the link"}};
  for (const HookTime& time : results.hooks) {
    rows.push_back(row_of(results, time));
  }
  return reporting::aligned_table(rows, "lrrrrrrr");
}

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

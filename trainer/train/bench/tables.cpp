#include "trainer/train/bench/tables.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <narrowcast/wire_format.h>
#include "trainer/train/reporting/formatting.h"

namespace narrowcast::bench {
namespace {

using reporting::TableRow;

// About three significant digits: "0", "0.0123", "0.123", "1.23", "12.34", "123.4".
std::string digits(double value) {
  if (value == 0) {
    return "0";
  }
  const int decimals = value < 0.1 ? 4 : value < 1 ? 3 : value < 100 ? 2 : 1;
  return absl::StrFormat("%.*f", decimals, value);
}

std::string text_or_dash(const std::optional<double>& value) { return value ? digits(*value) : "-"; }

std::string bytes_text(int64_t bytes) { return reporting::format_bytes(static_cast<double>(bytes)); }

TableRow row_of(const BenchResults& results, const HookTime& time) {
  const auto share = share_of_link(results, time);
  return {time.hook,
          absl::StrCat(time.bucket_bytes),
          absl::StrCat(elements_of(time.bucket_bytes)),
          absl::StrCat(time.buckets),
          digits(min_ms(time)),
          digits(time.median_ms),
          digits(p99_ms(time)),
          text_or_dash(speed_up(results, time, kReference)),
          text_or_dash(speed_up(results, time, kBf16)),
          digits(algorithm_bandwidth(time)),
          digits(bus_bandwidth(time, results.ranks)),
          digits(wire_bandwidth(time)),
          share ? reporting::format_percent(*share) : "-",
          bytes_text(time.payload_bytes),
          bytes_text(time.payload_bytes_per_node)};
}

TableRow row_of(const HookExactness& exactness) {
  return {exactness.hook,
          absl::StrCat(exactness.bucket_bytes),
          absl::StrCat(elements_of(exactness.bucket_bytes)),
          absl::StrFormat("%.2e", exactness.squared_relative_error),
          absl::StrCat(exactness.outside_tolerance),
          exactness.replicas_equal ? "equal" : "DIFFER"};
}

TableRow row_of(const HookFit& fit) {
  return {fit.hook,
          absl::StrCat(fit.buckets),
          absl::StrCat(fit.sizes),
          absl::StrFormat("%.0f", fit.latency_us),
          text_or_dash(fit.gb_per_second),
          reporting::format_percent(fit.worst_residual)};
}

}  // namespace

std::string link_text(const LinkRate& link) {
  return absl::StrFormat(
      "Link: %.2f Gbit/s from each rank to the next, all at once (messages of %s); round trip %.0f us.\n",
      link.gbit_per_second, bytes_text(link.message_bytes), link.round_trip_us);
}

std::string kernel_table(const KernelRates& kernels) {
  const bool on_cpu = kernels.device == c10::DeviceType::CPU;
  const char* const share = on_cpu ? "of reading" : "of copying";
  std::vector<TableRow> rows = {{"format", "encode", share, "decode", share}};
  const auto share_text = [&](const FormatRates& format, double rate) {
    return reporting::format_percent(share_of_memory(kernels, format.format, rate));
  };
  for (const FormatRates& format : kernels.formats) {
    rows.push_back({std::string(to_string(format.format)), absl::StrFormat("%.1f", format.encode),
                    share_text(format, format.encode), absl::StrFormat("%.1f", format.decode),
                    share_text(format, format.decode)});
  }
  const std::string title =
      on_cpu ? absl::StrFormat("Kernels, one thread, GB/s of float32; memory is read at %.1f GB/s:\n", kernels.memory)
             : absl::StrFormat("Kernels, rank 0's GPU, GB/s of float32; a copy reads and writes %.1f GB/s:\n",
                               kernels.memory);
  return title + reporting::aligned_table(rows, "lrrrr");
}

std::string ranks_text(const BenchResults& results) {
  const auto& nodes = results.ranks_per_node;
  const auto [fewest, most] = std::minmax_element(nodes.begin(), nodes.end());
  const std::string on_each = *fewest == *most ? absl::StrCat(*most) : absl::StrCat(*fewest, " to ", *most);
  const std::string on_nodes =
      nodes.size() == 1 ? "one node" : absl::StrCat(nodes.size(), " nodes, ", on_each, " on each");
  const bool share = results.ranks > std::ssize(nodes);
  const char* const levels = !share ? "" : results.levels == 2 ? "; two levels" : "; one level";
  const char* const device = results.device == c10::DeviceType::CPU ? "" : "; buckets on GPUs";
  const std::string network = results.network.starts_with("simulated") ? "; network: " + results.network : "";
  const std::string connections =
      results.connections.empty() ? "" : "; connections between nodes: " + results.connections;
  return absl::StrCat("Ranks: ", results.ranks, " on ", on_nodes, levels, device, network, connections, ".\n");
}

std::string one_node_text(const BenchResults& results) {
  if (results.ranks_per_node.size() != 1) {
    return "";
  }
  const bool on_cpu = results.device == c10::DeviceType::CPU;
  const char* const way = !on_cpu               ? "the connections between its GPUs"
                          : results.levels == 2 ? "its memory"
                                                : "its loopback interface";
  const char* const bytes = results.levels == 2 ? ", and nothing is sent in wire formats" : "";
  return absl::StrCat("One node: this measures ", way, bytes,
                      ". To measure a network, use several machines, narrowcast-run --simulate_gbit=1, or "
                      "--node_size=1 on one machine.\n");
}

std::string hook_table(const BenchResults& results) {
  std::vector<TableRow> rows = {{"hook", "bytes", "elements", "buckets", "min ms", "median ms", "p99 ms",
                                 absl::StrCat("x ", kReference), "x bf16", "algbw", "busbw", "wire", "of link",
                                 "sent/rank", "sent/node"}};
  const HookTime* before = nullptr;
  for (const HookTime& time : results.hooks) {
    if (before != nullptr && (before->bucket_bytes != time.bucket_bytes || before->buckets != time.buckets)) {
      rows.emplace_back(rows[0].size());  // An empty line.
    }
    rows.push_back(row_of(results, time));
    before = &time;
  }
  return absl::StrCat(
      "Hooks: times of the slowest rank; GB/s: algbw averaged float32, busbw fp32-equivalent, wire "
      "payload of a rank:\n",
      reporting::aligned_table(rows, "lrrrrrrrrrrrrrr"));
}

std::string decision_lines(const BenchResults& results) {
  std::string lines;
  for (const HookTime& time : results.hooks) {
    if (!time.decision.empty()) {
      absl::StrAppend(&lines, time.hook, ", ", time.buckets, " x ", time.bucket_bytes, " bytes: ", time.decision, "\n");
    }
  }
  return lines;
}

std::string exactness_table(const BenchResults& results) {
  std::vector<TableRow> rows = {
      {"hook", "bytes", "elements", "squared relative error", "outside tolerance", "replicas"}};
  int64_t bytes_before = results.exactness.front().bucket_bytes;
  for (const HookExactness& exactness : results.exactness) {
    if (exactness.bucket_bytes != bytes_before) {
      rows.emplace_back(rows[0].size());
    }
    rows.push_back(row_of(exactness));
    bytes_before = exactness.bucket_bytes;
  }
  return absl::StrCat("Exactness: one bucket of normal numbers against its mean in float64:\n",
                      reporting::aligned_table(rows, "lrrrrl"));
}

std::string fit_table(const BenchResults& results) {
  const std::vector<HookFit> fits = fit_hooks(results);
  if (fits.empty()) {
    return "";
  }
  std::vector<TableRow> rows = {{"hook", "buckets", "sizes", "latency us", "GB/s", "off by up to"}};
  for (const HookFit& fit : fits) {
    rows.push_back(row_of(fit));
  }
  return absl::StrCat("Fit: median time = latency + bytes of float32 / bandwidth, least squares of relative errors:\n",
                      reporting::aligned_table(rows, "lrrrrr"));
}

}  // namespace narrowcast::bench

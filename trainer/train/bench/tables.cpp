#include "trainer/train/bench/tables.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <optional>
#include <vector>

#include <narrowcast/wire_format.h>
#include "trainer/train/bench/bench_options.h"
#include "trainer/train/bench/comparison.h"
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

}  // namespace

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
  std::vector<TableRow> rows = {
      {"hook", "bucket", "buckets", "ms", "x allreduce", "x bf16_compress", "sent per rank", "of the link"}};
  for (const HookTime& time : results.hooks) {
    rows.push_back(row_of(results, time));
  }
  return reporting::aligned_table(rows, "lrrrrrrr");
}

}  // namespace narrowcast::bench

#include "trainer/train/reporting/metrics.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <narrowcast/errors.h>
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::reporting {
namespace {

using nlohmann::json;

constexpr int64_t kReadAtOnce = int64_t{1} << 20;

bool is_event(const json& line, const char* event) { return line.value("event", json()) == event; }

// A path whose status is unavailable counts as existing: reading it then fails with the reason.
bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

// Calls use(object) for each complete line; does nothing if there is no such file. The memory does not depend on the
// file's length: a long training has many lines.
template <class Use>
void for_each_line(const std::string& path, const Use& use) {
  if (!is_there(path)) {
    return;
  }
  const files::InputFile file(path, files::Links::kRefuse);
  const auto longest_line = static_cast<size_t>(files::JsonLimits().bytes);
  const auto use_line = [&](std::string_view line) {
    const json object = files::try_parse_json(line).value;
    if (object.is_object()) {
      use(object);
    }
  };
  std::string text;  // Starts at the beginning of a line.
  int64_t offset = 0;
  for (int64_t more = -1; more != 0; offset += more) {
    NARROWCAST_CHECK_INPUT(text.size() <= longest_line, path, ": has a line of more than ", longest_line, " bytes");
    const size_t kept = text.size();
    text.resize(kept + static_cast<size_t>(kReadAtOnce));
    more = file.read_some(offset, text.data() + kept, kReadAtOnce);
    text.resize(kept + static_cast<size_t>(more));
    size_t begin = 0;
    for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      use_line(std::string_view(text).substr(begin, end - begin));
    }
    text.erase(0, begin);
  }
  use_line(text);
}

bool is_after(const json& line, int64_t step) {
  const json at = line.value("step", json());
  return at.is_number_integer() && at.get<int64_t>() > step;
}

}  // namespace

nlohmann::json outer_json(const OuterReport& report) {
  json line = {{"outer_exchanges", report.exchanges},
               {"joined_exchanges", report.joined_exchanges},
               {"lost_exchanges", report.lost_exchanges},
               {"outer_payload_bytes_sent", report.payload_bytes_sent},
               {"replicas", report.replicas_are_equal ? "equal" : "differ"}};
  if (report.staleness.has_value()) {
    line["staleness"] = *report.staleness;
  }
  if (report.round_steps.has_value()) {
    line["fewest_round_steps"] = report.round_steps->fewest;
    line["most_round_steps"] = report.round_steps->most;
  }
  if (!report.rounds_by_group.empty()) {
    line["rounds_by_group"] = report.rounds_by_group;
  }
  return line;
}

nlohmann::json step_json(const StepReport& report) {
  json line = {{"event", "step"},
               {"step", report.step},
               {"loss", report.loss},
               {"learning_rate", report.learning_rate},
               {"units_per_second", report.units_per_second},
               {"seconds", report.seconds},
               {"payload_bytes_sent", report.payload_bytes_sent},
               {"measuring_bytes_sent", report.measuring_bytes_sent},
               {"skipped_steps", report.skipped_steps}};
  if (report.gradient_norm.has_value()) {
    line["gradient_norm"] = *report.gradient_norm;
  }
  if (report.parameter_difference.has_value()) {
    line["parameter_difference"] = *report.parameter_difference;
  }
  if (report.compression.has_value()) {
    line["compression"] = *report.compression;
  }
  if (report.peak_memory_bytes > 0) {
    line["peak_memory_bytes"] = report.peak_memory_bytes;
  }
  if (report.skipped.has_value()) {
    line["nonfinite_ranks"] = report.skipped->nonfinite_ranks;
  }
  if (report.exchange.has_value()) {
    line.update({{"exchange_seconds", report.exchange->seconds},
                 {"slowest_rank", report.exchange->slowest_rank},
                 {"waiting_share", report.exchange->waiting_share}});
  }
  if (report.outer.has_value()) {
    line.update(outer_json(*report.outer));
  }
  return line;
}

nlohmann::json evaluation_json(const EvaluationReport& report) {
  json line = {
      {"event", "evaluation"}, {"step", report.step}, {"validation_loss", report.loss}, {"seconds", report.seconds}};
  if (report.accuracy.has_value()) {
    line["validation_accuracy"] = *report.accuracy;
  }
  return line;
}

std::vector<nlohmann::json> read_metrics(const std::string& path) {
  std::vector<json> lines;
  const files::InputFile readable(path, files::Links::kRefuse);
  for_each_line(path, [&](const json& line) { lines.push_back(line); });
  return lines;
}

bool truncate_metrics(const std::string& path, int64_t step) {
  if (!is_there(path)) {
    return false;
  }
  files::AtomicFile file(path);
  for_each_line(path, [&](const json& line) {
    if (is_event(line, "recovery") || (!is_after(line, step) && !is_event(line, "end"))) {
      file.write(line.dump() + "\n");
    }
  });
  file.commit();
  return true;
}

bool metrics_are_of(const std::string& path, const std::string& run_id) {
  std::optional<bool> is_own;
  for_each_line(path, [&](const json& line) {
    if (!is_own.has_value() && is_event(line, "start")) {
      is_own = line.value("run_id", json()) == run_id;
    }
  });
  return is_own.value_or(false);
}

bool metrics_have_ended(const std::string& path) {
  bool ended = false;
  for_each_line(path, [&](const json& line) { ended = ended || is_event(line, "end"); });
  return ended;
}

void Metrics::on_start(const nlohmann::json& plan) {
  nlohmann::json line = {{"event", "start"}};
  line.update(plan);
  file_.append(line);
}

void Metrics::on_step(const StepReport& report) { file_.append(step_json(report)); }

void Metrics::on_evaluation(const EvaluationReport& report) { file_.append(evaluation_json(report)); }

void Metrics::on_checkpoint(const CheckpointReport& report) {
  file_.append({{"event", "checkpoint"},
                {"step", report.step},
                {"path", report.path},
                {"bytes", report.bytes},
                {"seconds", report.seconds}});
}

void Metrics::on_buckets(const BucketsReport& report) {
  json sizes = json::array();
  for (const BucketSizeReport& size : report.sizes) {
    sizes.push_back({{"bucket_cap_mb", size.cap_mb}, {"buckets", size.buckets}, {"seconds_left", size.seconds_left}});
  }
  file_.append({{"event", "buckets"},
                {"step", report.step},
                {"bucket_cap_mb", report.chosen.cap_mb},
                {"buckets", report.chosen.buckets},
                {"seconds_left", report.chosen.seconds_left},
                {"backward_seconds", report.backward_seconds},
                {"sizes", sizes}});
}

void Metrics::on_hook(const HookReport& report) {
  file_.append({{"event", "hook"}, {"step", report.step}, {"hook", report.hook}, {"decision", report.decision}});
}

void Metrics::on_shares(const SharesReport& report) {
  file_.append({{"event", "shares"},
                {"step", report.step},
                {"samples", report.samples},
                {"seconds_per_sample", report.seconds_per_sample}});
}

void Metrics::on_resume(const ResumeReport& report) {
  json line = {{"event", "resume"}, {"step", report.step}, {"path", report.path}};
  if (!report.changes.empty()) {
    line["changes"] = report.changes;
  }
  if (!report.lost.empty()) {
    line["lost"] = report.lost;
  }
  file_.append(line);
}

void Metrics::on_recovery(const RecoveryReport& report) {
  json line = {
      {"event", "recovery"}, {"step", report.step}, {"ranks", report.ranks}, {"lost_ranks", report.lost_ranks}};
  if (report.lost_residuals > 0) {
    line["lost_residuals"] = report.lost_residuals;
  }
  if (report.seconds.has_value()) {
    line["seconds"] = *report.seconds;
  }
  file_.append(line);
}

void Metrics::on_end(const nlohmann::json& results) {
  nlohmann::json line = {{"event", "end"}};
  line.update(results);
  file_.append(line);
}

}  // namespace narrowcast::reporting

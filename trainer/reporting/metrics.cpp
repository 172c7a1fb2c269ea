#include "trainer/reporting/metrics.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <vector>

#include "trainer/files/file_io.h"
#include "trainer/files/input/input_file.h"
#include "trainer/files/input/json.h"

namespace narrowcast::reporting {
namespace {

using nlohmann::json;

bool is_event(const json& line, const char* event) { return line.value("event", json()) == event; }

// What cannot be looked up cannot be read either, and that says why.
bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

// The lines that are whole; nothing if there is no such file.
std::vector<json> whole_lines(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(is_there(path) ? files::read_file(path, {.links = files::Links::kRefuse}) : "");
  for (std::string line; std::getline(text, line);) {
    json object = files::try_parse_json(line).value;
    if (object.is_object()) {
      lines.push_back(std::move(object));
    }
  }
  return lines;
}

bool is_after(const json& line, int64_t step) {
  const json at = line.value("step", json());
  return at.is_number_integer() && at.get<int64_t>() > step;
}

}  // namespace

bool truncate_metrics(const std::string& path, int64_t step) {
  if (!is_there(path)) {
    return false;
  }
  const std::vector<json> lines = whole_lines(path);
  files::AtomicFile file(path);
  for (const json& line : lines) {
    if (!is_after(line, step) && !is_event(line, "end")) {
      file.write(line.dump() + "\n");
    }
  }
  file.commit();
  return true;
}

bool metrics_have_ended(const std::string& path) {
  const std::vector<json> lines = whole_lines(path);
  return std::any_of(lines.begin(), lines.end(), [](const json& line) { return is_event(line, "end"); });
}

void Metrics::on_start(const nlohmann::json& plan) {
  nlohmann::json line = {{"event", "start"}};
  line.update(plan);
  file_.append(line);
}

void Metrics::on_step(const StepReport& report) {
  nlohmann::json line = {{"event", "step"},
                         {"step", report.step},
                         {"loss", report.loss},
                         {"learning_rate", report.learning_rate},
                         {"units_per_second", report.units_per_second},
                         {"seconds", report.seconds},
                         {"payload_bytes_sent", report.payload_bytes_sent},
                         {"skipped_steps", report.skipped_steps}};
  if (report.gradient_norm.has_value()) {
    line["gradient_norm"] = *report.gradient_norm;
  }
  file_.append(line);
}

void Metrics::on_evaluation(const EvaluationReport& report) {
  file_.append(
      {{"event", "evaluation"}, {"step", report.step}, {"validation_loss", report.loss}, {"seconds", report.seconds}});
}

void Metrics::on_checkpoint(const CheckpointReport& report) {
  file_.append({{"event", "checkpoint"},
                {"step", report.step},
                {"path", report.path},
                {"bytes", report.bytes},
                {"seconds", report.seconds}});
}

void Metrics::on_resume(const ResumeReport& report) {
  json line = {{"event", "resume"}, {"step", report.step}, {"path", report.path}};
  if (!report.changes.empty()) {
    line["changes"] = report.changes;
  }
  file_.append(line);
}

void Metrics::on_end(const nlohmann::json& results) {
  nlohmann::json line = {{"event", "end"}};
  line.update(results);
  file_.append(line);
}

}  // namespace narrowcast::reporting

// metrics.jsonl: a training's reports for programs. docs/reference/metrics.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/train/files/file_io.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// The file's name in the folder of a training.
inline constexpr const char* kMetricsFile = "metrics.jsonl";

// One line per report, each with its "event".
class Metrics : public TrainingObserver {
 public:
  // Throws c10::ValueError naming the path if it cannot be written.
  explicit Metrics(const std::string& path, files::JsonLinesMode mode = files::JsonLinesMode::kReplace)
      : file_(path, mode) {}

  // {"event": "start"} with the keys of `plan`, a JSON object.
  void on_start(const nlohmann::json& plan);
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  // {"event": "checkpoint"} with the report's values.
  void on_checkpoint(const CheckpointReport& report) override;
  // {"event": "buckets"} with the report's values.
  void on_buckets(const BucketsReport& report) override;
  // {"event": "hook"} with the report's values.
  void on_hook(const HookReport& report) override;
  // {"event": "shares"} with the report's values.
  void on_shares(const SharesReport& report) override;
  // {"event": "resume"} with the report's values.
  void on_resume(const ResumeReport& report);
  // {"event": "recovery"} with the report's values.
  void on_recovery(const RecoveryReport& report);
  // {"event": "end"} with the keys of `results`.
  void on_end(const nlohmann::json& results);

 private:
  files::JsonLinesFile file_;
};

// The keys for it in the lines of a step and of the end: outer_exchanges, joined_exchanges, lost_exchanges,
// outer_payload_bytes_sent, replicas ("equal" or "differ"), staleness, fewest_round_steps, most_round_steps.
nlohmann::json outer_json(const OuterReport& report);

// The lines of a step and of an evaluation: {"event": "step"} and {"event": "evaluation"} with the report's values.
nlohmann::json step_json(const StepReport& report);
nlohmann::json evaluation_json(const EvaluationReport& report);

// The lines of the file, in order, without lines that are not JSON objects, which a crash may have left. Throws as
// truncate_metrics does, and c10::ValueError if there is no such file.
std::vector<nlohmann::json> read_metrics(const std::string& path);

// Removes from the file all lines written after optimizer step `step` except recoveries, ends of trainings, and lines
// that are not JSON objects within the limits of parse_json, which a crash may have left. Returns false if there is no
// such file. The file changes as a whole or not at all. Throws c10::ValueError naming the path if it cannot be read or
// written, or is a link or not a regular file, and CorruptInputError if a line is longer than parse_json accepts.
bool truncate_metrics(const std::string& path, int64_t step);

// Whether the launcher's job `run_id` began the training, according to the "run_id" of the file's first start; false if
// there is no such file. Throws as truncate_metrics does.
bool metrics_are_of(const std::string& path, const std::string& run_id);

// Whether the file contains the end of a training; false if there is no such file. Throws as truncate_metrics does.
bool metrics_have_ended(const std::string& path);

}  // namespace narrowcast::reporting

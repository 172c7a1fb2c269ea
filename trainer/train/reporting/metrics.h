// metrics.jsonl: a training for programs to read. docs/training.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/train/files/file_io.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// What the file is called in the folder of a training.
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
  // {"event": "checkpoint"} with what the report holds.
  void on_checkpoint(const CheckpointReport& report) override;
  // {"event": "buckets"} likewise.
  void on_buckets(const BucketsReport& report) override;
  // {"event": "hook"} likewise.
  void on_hook(const HookReport& report) override;
  // {"event": "resume"} likewise.
  void on_resume(const ResumeReport& report);
  // {"event": "end"} with the keys of `results`.
  void on_end(const nlohmann::json& results);

 private:
  files::JsonLinesFile file_;
};

// What a step and the end have of it: outer_exchanges, joined_exchanges, lost_exchanges, outer_payload_bytes_sent,
// replicas ("equal" or "differ"), staleness.
nlohmann::json outer_json(const OuterReport& report);

// The lines of a step and of an evaluation: {"event": "step"} and {"event": "evaluation"} with what the report holds.
nlohmann::json step_json(const StepReport& report);
nlohmann::json evaluation_json(const EvaluationReport& report);

// The lines of the file, in their order, without those that are no JSON objects, which a crash may have left. Throws as
// truncate_metrics does, and c10::ValueError if there is no such file.
std::vector<nlohmann::json> read_metrics(const std::string& path);

// Takes out of the file what was written after optimizer step `step`, ends of trainings, and lines that are no JSON
// objects within the limits of parse_json, which a crash may have left. Returns false if there is no such file. It
// changes as a whole or not at all; throws c10::ValueError naming the path if it cannot be read or written, or is a
// link or no regular file, and CorruptInputError if a line is longer than parse_json takes.
bool truncate_metrics(const std::string& path, int64_t step);

// Whether the launcher's job `run_id` began the training there, by the "run_id" of the first start; false if there is
// no such file. Throws as truncate_metrics does.
bool metrics_are_of(const std::string& path, const std::string& run_id);

// Whether a training came to its end there; false if there is no such file. Throws as truncate_metrics does.
bool metrics_have_ended(const std::string& path);

}  // namespace narrowcast::reporting

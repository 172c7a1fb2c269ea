// metrics.jsonl: a training for programs to read. docs/training.md lists the keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ops/export.h"
#include "trainer/files/json_lines.h"
#include "trainer/reporting/reports.h"

namespace narrowcast::reporting {

// One line per report, each with its "event".
class NARROWCAST_EXPORT Metrics : public TrainingObserver {
 public:
  // Replaces the file at `path`. Throws c10::ValueError naming the path if it cannot be written.
  explicit Metrics(const std::string& path) : file_(path) {}

  // {"event": "start"} with the keys of `plan`, a JSON object.
  void on_start(const nlohmann::json& plan);
  // {"event": "step"} with what the report holds.
  void on_step(const StepReport& report) override;
  // {"event": "evaluation"} likewise.
  void on_evaluation(const EvaluationReport& report) override;
  // {"event": "end"} with the keys of `results`.
  void on_end(const nlohmann::json& results);

 private:
  files::JsonLinesFile file_;
};

}  // namespace narrowcast::reporting

// A page of curves and tables for people, in one self-contained file: report.html.in.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// The page, with "{{DATA}}" as the place of its document: report.html.in, which the build puts into report_page.cpp.
extern const char* const kReportPage;

// The page with its document, a JSON object with these keys:
//   - "title": the page's title.
//   - "note" (optional): a line below the title.
//   - "trainings" (optional): an array of "name" and "events", the lines of the training's metrics.jsonl.
//   - "benches" (optional): an array of "name" and "results", the JSON of narrowcast-bench --json.
std::string report_page(const nlohmann::json& document);

// Throws c10::ValueError "report: ..." naming a path that is not NAME.html, since an existing file will be replaced.
void check_page_name(const std::string& path);

// Writes the whole page or nothing. Throws OutputError naming the path if it cannot be written.
void write_report(const std::string& path, const nlohmann::json& document);

// The largest number of one training's reports on a page. A page of a longer training shows every second report, or
// every third and so on, and the last.
inline constexpr int64_t kMostReportsShown = 2000;

// The document of trainings, each given by its metrics.jsonl or the folder that contains it. A training's name is its
// folder's name, or the given path if several would have the same name. Throws as read_metrics does, and
// CorruptInputError naming a file without a "start".
nlohmann::json trainings_document(const std::vector<std::string>& paths);

// The page of one training. It is written at each checkpoint, so that it exists even if the training ends early.
class TrainingReport : public TrainingObserver {
 public:
  // `folder` contains the training's metrics.jsonl.
  TrainingReport(std::string path, std::string folder);

  // Writes the page of the current metrics.jsonl. Throws as trainings_document and write_report do.
  void write() const;

  void on_step(const StepReport& /*report*/) override {}
  void on_evaluation(const EvaluationReport& /*report*/) override {}
  void on_checkpoint(const CheckpointReport& /*report*/) override { write(); }

 private:
  std::string path_;
  std::string folder_;
};

}  // namespace narrowcast::reporting

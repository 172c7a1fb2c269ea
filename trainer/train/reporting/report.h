// A page of curves and tables for people, in one file that fetches nothing: report.html.in.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// The page, with "{{DATA}}" where its document belongs: report.html.in, which the build puts into report_page.cpp.
extern const char* const kReportPage;

// The page with its document, a JSON object with
//   "title": of the page; "note" (may be absent): a line below it;
//   "trainings" (may be absent): for each "name" and "events", the lines of its metrics.jsonl;
//   "benches" (may be absent): for each "name" and "results", what narrowcast-bench --json writes.
std::string report_page(const nlohmann::json& document);

// Throws c10::ValueError "report: ..." naming a path that is no NAME.html: what is there will be replaced.
void check_page_name(const std::string& path);

// Writes the page, as a whole. Throws OutputError naming the path if it cannot be written.
void write_report(const std::string& path, const nlohmann::json& document);

// The reports of one training that a page shows; of one with more, it shows every second, third and so on, and the
// last.
inline constexpr int64_t kMostReportsShown = 2000;

// The document of trainings, each given by its metrics.jsonl or the folder that holds it. They are named by their
// folder, or where several would have the same name, as they are given. Throws as read_metrics does, and
// CorruptInputError naming a file without a "start".
nlohmann::json trainings_document(const std::vector<std::string>& paths);

// The page of one training, written at each of its checkpoints, so that there is one whatever comes later.
class TrainingReport : public TrainingObserver {
 public:
  // Of the training whose metrics.jsonl is in `folder`.
  TrainingReport(std::string path, std::string folder);

  // Writes the page of what is in metrics.jsonl. Throws as trainings_document and write_report do.
  void write() const;

  void on_step(const StepReport& /*report*/) override {}
  void on_evaluation(const EvaluationReport& /*report*/) override {}
  void on_checkpoint(const CheckpointReport& /*report*/) override { write(); }

 private:
  std::string path_;
  std::string folder_;
};

}  // namespace narrowcast::reporting

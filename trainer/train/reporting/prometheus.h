// Exports a training to Prometheus: a file in its text format, for node_exporter's textfile collector.
// docs/reference/metrics.md lists the metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// The file's path, and the labels that distinguish trainings.
struct PrometheusOptions {
  std::string path = {};
  std::string model = {};        // a label of all metrics, unchanged
  std::string hook = {};         // another such label
  std::string unit = "samples";  // the unit of units_per_second, part of a metric's name
};

// Replaces the whole file at each report: it contains the last known values. Throws OutputError naming the path if it
// cannot be written.
class PrometheusFile : public TrainingObserver {
 public:
  explicit PrometheusFile(PrometheusOptions options);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

 private:
  void write() const;

  PrometheusOptions options_;
  int64_t step_ = 0;
  std::optional<StepReport> last_step_;
  std::optional<double> validation_loss_;
};

}  // namespace narrowcast::reporting

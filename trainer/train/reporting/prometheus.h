// A training for Prometheus: a file in its text format, which node_exporter's textfile collector reads.
// docs/training.md lists the metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// Where it is written, and what tells one training from another.
struct PrometheusOptions {
  std::string path = {};
  std::string model = {};        // a label of all metrics, as is
  std::string hook = {};         // likewise
  std::string unit = "samples";  // what units_per_second counts, part of a metric's name
};

// Replaces the file at each report, as a whole: it holds the last values that are known. Throws OutputError naming the
// path if it cannot be written.
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

#include "trainer/reporting/metrics.h"

namespace narrowcast::reporting {

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

void Metrics::on_end(const nlohmann::json& results) {
  nlohmann::json line = {{"event", "end"}};
  line.update(results);
  file_.append(line);
}

}  // namespace narrowcast::reporting

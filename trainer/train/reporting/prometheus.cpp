#include "trainer/train/reporting/prometheus.h"

#include <c10/util/Exception.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/train/files/file_io.h"

namespace narrowcast::reporting {
namespace {

// A label's value in the format's quoting.
std::string quoted_label(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') {
      text += '\\';
    }
    text += c;
  }
  return text + '"';
}

std::string sample_text(int64_t value) { return std::to_string(value); }

// With the digits that reproduce the number exactly.
std::string sample_text(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
  }
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

// Metrics with one sample each, all with the same labels.
class MetricsText {
 public:
  explicit MetricsText(const PrometheusOptions& options)
      : labels_("{model=" + quoted_label(options.model) + ",hook=" + quoted_label(options.hook) + "}") {}

  // A value that may decrease.
  template <class Number>
  void add_gauge(const std::string& name, const char* help, Number value) {
    add(name, "gauge", help, sample_text(value));
  }
  // Omits an unknown value.
  void add_gauge(const std::string& name, const char* help, const std::optional<double>& value) {
    if (value.has_value()) {
      add_gauge(name, help, *value);
    }
  }
  // A value that decreases only at a restart.
  template <class Number>
  void add_counter(const std::string& name, const char* help, Number value) {
    add(name + "_total", "counter", help, sample_text(value));
  }

  const std::string& text() const { return text_; }

 private:
  void add(const std::string& name, const char* type, const char* help, const std::string& value) {
    const std::string full_name = "narrowcast_" + name;
    text_ += "# HELP " + full_name + " " + help + "\n# TYPE " + full_name + " " + type + "\n" + full_name + labels_ +
             " " + value + "\n";
  }

  std::string labels_;
  std::string text_;
};

void add_step(MetricsText& metrics, const StepReport& report, const std::string& unit) {
  metrics.add_gauge("training_loss", "Mean over ranks and the steps since the last report; a cross entropy is in nats.",
                    report.loss);
  metrics.add_gauge("learning_rate", "Learning rate of the last step.", report.learning_rate);
  metrics.add_gauge("gradient_norm", "2-norm of the gradients of the last step, before clipping.",
                    report.gradient_norm);
  metrics.add_gauge("parameter_difference", "Largest difference between masters and parameters of a sharded optimizer.",
                    report.parameter_difference);
  metrics.add_gauge(unit + "_per_second", "Speed of all ranks since the last report.", report.units_per_second);
  metrics.add_gauge("compression_ratio", "Bytes of float32 gradients over those sent for them in the last step.",
                    report.compression);
  metrics.add_counter("training_seconds", "Time of training, without evaluations and checkpoints.", report.seconds);
  metrics.add_counter("sent_payload_bytes", "Bytes that rank 0 has sent for gradients and parameters.",
                      report.payload_bytes_sent);
  metrics.add_counter("sent_measuring_bytes", "Bytes that rank 0 has sent to measure links and exchanges.",
                      report.measuring_bytes_sent);
  metrics.add_counter("skipped_steps", "Steps skipped because a gradient was not finite.", report.skipped_steps);
}

}  // namespace

PrometheusFile::PrometheusFile(PrometheusOptions options) : options_(std::move(options)) {}

void PrometheusFile::on_step(const StepReport& report) {
  step_ = report.step;
  last_step_ = report;
  write();
}

void PrometheusFile::on_evaluation(const EvaluationReport& report) {
  step_ = report.step;
  validation_loss_ = report.loss;
  write();
}

void PrometheusFile::write() const {
  MetricsText metrics(options_);
  metrics.add_gauge("step", "Optimizer steps done.", step_);
  metrics.add_gauge("validation_loss", "Loss on held-out data, of the last evaluation; a cross entropy is in nats.",
                    validation_loss_);
  if (last_step_.has_value()) {
    add_step(metrics, *last_step_, options_.unit);
  }
  try {
    files::AtomicFile file(options_.path);
    file.write(metrics.text());
    file.commit_unsynced();
  } catch (const c10::ValueError& failure) {  // The path was a valid place for a file when the training began.
    NARROWCAST_CHECK_OUTPUT(false, failure.what_without_backtrace());
  }
}

}  // namespace narrowcast::reporting

#include "trainer/train/reporting/progress.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>
#include <utility>

#include "ops/common/text.h"
#include "trainer/train/reporting/formatting.h"

namespace narrowcast::reporting {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";
constexpr const char* kCutLines = "\x1b[?7l";  // A wider text would wrap to a second line, which would stay.
constexpr const char* kWrapLines = "\x1b[?7h";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kNormal = "\x1b[0m";

std::string format_learning_rate(double learning_rate) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(1) << learning_rate;
  return text.str();
}

std::string format_milliseconds(double seconds) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(seconds < 0.01 ? 1 : 0) << seconds * 1000 << " ms";
  return text.str();
}

std::string exchange_text(const ExchangeReport& exchange) {
  return c10::str("exchange ", format_percent(exchange.share), ", wait for rank ", exchange.slowest_rank, " ",
                  format_percent(exchange.waiting_share));
}

// `ranks` had gradients that were not finite.
std::string skipped_text(int64_t steps, const std::set<int64_t>& ranks) {
  return c10::str(steps, " skipped", ranks.empty() ? "" : " (" + describe_ranks({ranks.begin(), ranks.end()}) + ")");
}

}  // namespace

std::string blame_text(const SkippedReport& skipped) {
  return skipped.nonfinite_ranks.empty()
             ? "every rank's own gradients were finite, their mean was not"
             : "the gradients of " + describe_ranks(skipped.nonfinite_ranks) + " were not finite";
}

void Observers::own(std::unique_ptr<TrainingObserver> observer) {
  add(*observer);
  owned_.push_back(std::move(observer));
}

void Observers::on_step(const StepReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_step(report); });
}

void Observers::on_evaluation(const EvaluationReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_evaluation(report); });
}

void Observers::on_checkpoint(const CheckpointReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_checkpoint(report); });
}

void Observers::on_buckets(const BucketsReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_buckets(report); });
}

void Observers::on_hook(const HookReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_hook(report); });
}

void Observers::on_shares(const SharesReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_shares(report); });
}

void Observers::on_absence(const AbsenceReport& report) {
  std::ranges::for_each(observers_, [&](auto* observer) { observer->on_absence(report); });
}

Progress::Progress(std::ostream& out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

Progress::~Progress() {
  if (line_is_open_) {
    out_ << std::endl;
  }
}

void Progress::on_step(const StepReport& report) {
  if (report.skipped.has_value()) {
    nonfinite_ranks_.insert(report.skipped->nonfinite_ranks.begin(), report.skipped->nonfinite_ranks.end());
  }
  const bool last = report.step == options_.steps;
  if (!options_.terminal && !last && report.seconds < next_line_at_) {
    return;
  }
  const auto steps_left = static_cast<double>(options_.steps - report.step);
  const double seconds_left = report.seconds / static_cast<double>(report.step) * steps_left;
  const std::optional<ExchangeReport>& exchange = report.exchange;
  const std::string line =
      c10::str(position(report.step), "  loss ", format_loss(report.loss), "  lr ",
               format_learning_rate(report.learning_rate), "  ", format_count(report.units_per_second), " ",
               options_.unit, "/s  ", format_bytes(static_cast<double>(report.payload_bytes_sent)), " sent  ",
               exchange ? exchange_text(*exchange) + "  " : "",
               report.skipped_steps > 0 ? skipped_text(report.skipped_steps, nonfinite_ranks_) + "  " : "",
               format_duration(last ? report.seconds : seconds_left), last ? " in all" : " left");
  print_line(options_.terminal ? kCutLines + line + kWrapLines : line);
  next_line_at_ = report.seconds + options_.seconds_between_lines;
}

void Progress::on_evaluation(const EvaluationReport& report) {
  std::string text = "validation loss " + format_loss(report.loss);
  if (report.accuracy.has_value()) {
    text += "  accuracy " + format_accuracy(*report.accuracy);
  }
  print_line(position(report.step) + "  " + (options_.color ? kBold + text + kNormal : text));
  keep_line();
}

void Progress::on_buckets(const BucketsReport& report) {
  std::string left;
  for (const BucketSizeReport& size : report.sizes) {
    left += c10::str(left.empty() ? "" : ", ", format_milliseconds(size.seconds_left), " with ", size.cap_mb, " MiB");
  }
  print_line(c10::str("buckets of ", report.chosen.cap_mb, " MiB: backward pass ",
                      format_milliseconds(report.backward_seconds), "; left to send after it: ", left));
  keep_line();
}

// On the screen of a terminal.
void Progress::keep_line() {
  if (line_is_open_) {
    out_ << std::endl;
    line_is_open_ = false;
  }
}

void Progress::on_hook(const HookReport& report) {
  keep_line();
  out_ << "hook " << report.hook << ": " << report.decision << std::endl;
}

void Progress::on_shares(const SharesReport& report) {
  keep_line();
  std::string samples;
  std::string times;
  for (size_t rank = 0; rank < report.samples.size(); ++rank) {
    const char* const comma = rank == 0 ? "" : ", ";
    samples += c10::str(comma, report.samples[rank]);
    const double seconds = report.seconds_per_sample[rank];
    times +=
        c10::str(comma, seconds < 1e-3 ? c10::str(std::lround(1e6 * seconds), " us") : format_milliseconds(seconds));
  }
  out_ << "shares after step " << report.step << ": " << samples << " samples of each batch; a sample takes " << times
       << std::endl;
}

void Progress::on_absence(const AbsenceReport& report) {
  keep_line();
  out_ << position(report.step) << "  group " << report.group << " "
       << (report.is_back ? "takes part again, after " : "is late: ") << report.missed
       << " outer steps in a row without it" << std::endl;
}

std::string Progress::position(int64_t step) const {
  const std::string total = std::to_string(options_.steps);
  std::ostringstream text;
  text << "step " << std::setw(static_cast<int>(total.size())) << step << "/" << total;
  return text.str();
}

void Progress::print_line(const std::string& line) {
  if (options_.terminal) {
    out_ << kEraseLine << line << std::flush;
    line_is_open_ = true;
  } else {
    out_ << line << std::endl;
  }
}

}  // namespace narrowcast::reporting

// The progress of a training for people: one line that is updated in place on
// a terminal, a plain line every so often elsewhere.
#pragma once

#include <ostream>
#include <string>

#include "trainer/train/reporting/reports.h"

namespace narrowcast::reporting {

struct ProgressOptions {
  int64_t steps = 0;                 // in the whole training
  std::string unit = "samples";      // what units_per_second counts
  bool terminal = false;             // update one line in place
  bool color = false;                // escape sequences for bold text
  double seconds_between_lines = 2;  // not on a terminal; the first and the last step always get a line
};

// Writes to `out`, which must outlive it.
class Progress : public TrainingObserver {
 public:
  Progress(std::ostream& out, ProgressOptions options);
  // Ends the updated line.
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

 private:
  std::string position(int64_t step) const;
  void print_line(const std::string& line);

  std::ostream& out_;
  ProgressOptions options_;
  double next_line_at_ = 0;    // in seconds of the training
  bool line_is_open_ = false;  // the terminal's cursor is at the end of a line to be overwritten
};

}  // namespace narrowcast::reporting

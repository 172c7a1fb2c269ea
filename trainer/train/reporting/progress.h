// What a training tells whoever watches it, and the watcher for people: one line that is updated in place on a
// terminal, a plain line every so often elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace narrowcast::reporting {

// What an outer optimizer has exchanged since the training began.
struct OuterReport {
  int64_t exchanges = 0;                            // fragments issued
  int64_t joined_exchanges = 0;                     // of those, the ones that have been joined
  int64_t lost_exchanges = 0;                       // of those, with a mean that was not finite
  int64_t payload_bytes_sent = 0;                   // by this rank
  bool replicas_are_equal = true;                   // whether all ranks have the same parameters at present
  std::optional<int64_t> staleness = std::nullopt;  // see OuterOptimizer::staleness
};

// What ranks wait for between the backward pass and the optimizer step, since the previous report.
struct ExchangeReport {
  double seconds = 0;        // by the rank that waits least: for the exchange itself
  double share = 0;          // those, of the time
  int64_t slowest_rank = 0;  // that rank: the others wait for it, too
  double waiting_share = 0;  // of the time, which the others, on average, wait for it
};

// Steps that were skipped since the previous report, because a gradient was not finite.
struct SkippedReport {
  std::vector<int64_t> nonfinite_ranks = {};  // whose own gradients were not, in any of them, in order
  int64_t in_a_row = 0;                       // the last ones, also those before that report
};

// For people: "the gradients of ranks 1, 2 were not finite".
std::string blame_text(const SkippedReport& skipped);

// The state after some optimizer steps.
struct StepReport {
  int64_t step = 0;          // optimizer steps done
  double loss = 0;           // mean over all ranks and the steps since the previous report
  double learning_rate = 0;  // of the last step
  std::optional<double> gradient_norm =
      std::nullopt;                  // of the last step, before clipping; none if gradients are not clipped
  double units_per_second = 0;       // all ranks, since the previous report; a unit is a token or a sample
  double seconds = 0;                // since the training began
  int64_t payload_bytes_sent = 0;    // by this rank since the training began, see CommHook::payload_bytes_sent
  int64_t measuring_bytes_sent = 0;  // by this rank, to measure links and exchanges; since the process began
  std::optional<double> compression = std::nullopt;       // of the last step, see CommHook::compression
  int64_t skipped_steps = 0;                              // since the training began, because a gradient was not finite
  std::optional<SkippedReport> skipped = std::nullopt;    // if any were since the previous report
  std::optional<ExchangeReport> exchange = std::nullopt;  // of several ranks, on the CPU, where all average every step
  std::optional<OuterReport> outer = std::nullopt;  // with an outer optimizer; its bytes are in payload_bytes_sent, too
};

// A look at the held-out data.
struct EvaluationReport {
  int64_t step = 0;                               // optimizer steps done
  double loss = 0;                                // mean over the held-out batches of all ranks
  double seconds = 0;                             // since the training began
  std::optional<double> accuracy = std::nullopt;  // share of right answers, of a model that counts them
};

// A checkpoint that is written.
struct CheckpointReport {
  int64_t step = 0;    // optimizer steps done
  std::string path;    // its folder
  int64_t bytes = 0;   // of all ranks
  double seconds = 0;  // that writing took
};

// A size of buckets that came into question.
struct BucketSizeReport {
  double cap_mb = 0;        // MiB
  int64_t buckets = 1;      // that many
  double seconds_left = 0;  // of sending after a backward pass, as reckoned
};

// The size of buckets that the first steps led to.
struct BucketsReport {
  int64_t step = 0;                          // optimizer steps done before
  BucketSizeReport chosen;                   // one of `sizes`
  double backward_seconds = 0;               // of a backward pass, without the exchange
  std::vector<BucketSizeReport> sizes = {};  // all, from small to large
};

// What a hook that chooses between others has decided, at the beginning and whenever it decides anew.
struct HookReport {
  int64_t step = 0;      // optimizer steps done
  std::string hook;      // its name
  std::string decision;  // see CommHook::decision
};

// The checkpoint from which a training resumes.
struct ResumeReport {
  int64_t step = 0;     // optimizer steps done
  std::string path;     // of the checkpoint
  std::string changes;  // what has changed since it was written; empty: nothing
};

// Called on one rank only.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;

  virtual void on_step(const StepReport& report) = 0;
  virtual void on_evaluation(const EvaluationReport& report) = 0;
  virtual void on_checkpoint(const CheckpointReport& /*report*/) {}
  virtual void on_buckets(const BucketsReport& /*report*/) {}
  virtual void on_hook(const HookReport& /*report*/) {}
};

// Passes every report on to several observers, in the order in which they were added.
class Observers : public TrainingObserver {
 public:
  // One that outlives this.
  void add(TrainingObserver& observer) { observers_.push_back(&observer); }
  void own(std::unique_ptr<TrainingObserver> observer);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_buckets(const BucketsReport& report) override;
  void on_hook(const HookReport& report) override;

 private:
  std::vector<TrainingObserver*> observers_;
  std::vector<std::unique_ptr<TrainingObserver>> owned_;
};

// How the line looks, and how often it comes.
struct ProgressOptions {
  int64_t steps = 0;                 // in the whole training
  std::string unit = "samples";      // what units_per_second counts
  bool terminal = false;             // update one line in place
  bool color = false;                // escape sequences for bold text
  double seconds_between_lines = 2;  // not on a terminal; the first and the last step always get a line
};

// Prints the line to `out`, which must outlive it.
class Progress : public TrainingObserver {
 public:
  Progress(std::ostream& out, ProgressOptions options);
  // Ends the updated line.
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_buckets(const BucketsReport& report) override;
  void on_hook(const HookReport& report) override;

 private:
  std::string position(int64_t step) const;
  void print_line(const std::string& line);
  void keep_line();

  std::ostream& out_;
  ProgressOptions options_;
  std::set<int64_t> nonfinite_ranks_;  // whose gradients were not finite in a step so far: not every report has a line
  double next_line_at_ = 0;            // in seconds of the training
  bool line_is_open_ = false;          // the terminal's cursor is at the end of a line to be overwritten
};

}  // namespace narrowcast::reporting

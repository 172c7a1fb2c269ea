// The reports of a training to its observers, and the observer for people: one line that is updated in place on a
// terminal, else a plain line every few seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace narrowcast::reporting {

// The exchanges of an outer optimizer since the training began.
struct OuterReport {
  int64_t exchanges = 0;                            // fragments issued
  int64_t joined_exchanges = 0;                     // number of them that have been joined
  int64_t lost_exchanges = 0;                       // number of them whose mean was not finite
  int64_t payload_bytes_sent = 0;                   // by this rank
  bool replicas_are_equal = true;                   // whether all ranks currently have the same parameters
  std::optional<int64_t> staleness = std::nullopt;  // see OuterOptimizer::staleness
  struct RoundSteps {
    int64_t fewest = 0;
    int64_t most = 0;
  };
  std::optional<RoundSteps> round_steps = std::nullopt;  // see OuterOptimizer::last_round
  // With a quorum: in how many outer steps since the previous report each group took part; else empty.
  std::vector<int64_t> rounds_by_group = {};
};

// Waiting times of ranks between the backward pass and the optimizer step, since the previous report.
struct ExchangeReport {
  double seconds = 0;        // waiting time of the rank that waits least, which is for the exchange itself
  double share = 0;          // the same, as a share of the time
  int64_t slowest_rank = 0;  // that rank, for which the others also wait
  double waiting_share = 0;  // mean waiting time of the other ranks for it, as a share of the time
};

// Steps that were skipped since the previous report, because a gradient was not finite.
struct SkippedReport {
  std::vector<int64_t> nonfinite_ranks = {};  // ranks whose own gradients were not finite, in order
  int64_t in_a_row = 0;                       // the last skipped steps, also before the previous report
};

// For people: "the gradients of ranks 1, 2 were not finite".
std::string blame_text(const SkippedReport& skipped);

// The state after some optimizer steps.
struct StepReport {
  int64_t step = 0;          // optimizer steps done
  double loss = 0;           // mean over all ranks and the steps since the previous report
  double learning_rate = 0;  // of the last step
  std::optional<double> gradient_norm =
      std::nullopt;  // of the last step, before clipping; empty if gradients are not clipped
  // The largest magnitude of any master minus its parameter (ShardedOptimizer::largest_difference), after the last
  // step.
  std::optional<double> parameter_difference = std::nullopt;
  double units_per_second = 0;       // of all ranks, since the previous report; a unit is a token or a sample
  double seconds = 0;                // since the training began
  int64_t payload_bytes_sent = 0;    // by this rank since the training began, see CommHook::payload_bytes_sent
  int64_t measuring_bytes_sent = 0;  // by this rank, to measure links and exchanges; since the process began
  std::optional<double> compression = std::nullopt;  // of the last step, see CommHook::compression
  int64_t peak_memory_bytes = 0;  // resident, of the rank that has most, since its process began; 0 if it is unknown
  int64_t skipped_steps = 0;      // since the training began, because a gradient was not finite
  std::optional<SkippedReport> skipped = std::nullopt;    // if steps were skipped since the previous report
  std::optional<ExchangeReport> exchange = std::nullopt;  // for several ranks on the CPU that average every step
  std::optional<OuterReport> outer = std::nullopt;  // with an outer optimizer; payload_bytes_sent includes its bytes
};

// The results of an evaluation on held-out data.
struct EvaluationReport {
  int64_t step = 0;                               // optimizer steps done
  double loss = 0;                                // mean over the held-out batches of all ranks
  double seconds = 0;                             // since the training began
  std::optional<double> accuracy = std::nullopt;  // share of right answers, if the model counts them
};

// A checkpoint that has been written.
struct CheckpointReport {
  int64_t step = 0;    // optimizer steps done
  std::string path;    // its folder
  int64_t bytes = 0;   // of all ranks
  double seconds = 0;  // duration of writing
};

// A candidate for the size of buckets.
struct BucketSizeReport {
  double cap_mb = 0;        // MiB
  int64_t buckets = 1;      // number of buckets
  double seconds_left = 0;  // of sending after a backward pass, as estimated
};

// The size of buckets that was chosen after the first steps.
struct BucketsReport {
  int64_t step = 0;                          // optimizer steps done before
  BucketSizeReport chosen;                   // one of `sizes`
  double backward_seconds = 0;               // of a backward pass, without the exchange
  std::vector<BucketSizeReport> sizes = {};  // all candidates, from small to large
};

// The decision of a hook that chooses between others, at the beginning and whenever it changes.
struct HookReport {
  int64_t step = 0;      // optimizer steps done
  std::string hook;      // its name
  std::string decision;  // see CommHook::decision
};

// How many samples of each batch every rank takes, as decided from the ranks' speeds.
struct SharesReport {
  int64_t step = 0;                             // optimizer steps done
  std::vector<int64_t> samples = {};            // of each rank
  std::vector<double> seconds_per_sample = {};  // of each rank's own computation
};

// With a quorum of outer steps: a group of ranks was late for some of them in a row, or takes part again.
struct AbsenceReport {
  int64_t step = 0;      // optimizer steps done
  int64_t group = 0;     // in the order of the groups' first ranks
  int64_t missed = 0;    // outer steps in a row without the group
  bool is_back = false;  // Whether it took part in the outer step after them.
};

// The checkpoint from which a training resumes.
struct ResumeReport {
  int64_t step = 0;       // optimizer steps done
  std::string path;       // of the checkpoint
  std::string changes;    // changes since it was written; empty: no changes
  std::string lost = {};  // why ranks that lived on did not continue from their memory; empty: they are all new
};

// A recovery in place: processes of lost ranks were replaced, and the training continues.
struct RecoveryReport {
  int64_t ranks = 1;                     // from now on
  int64_t former_ranks = 1;              // before
  int64_t step = 0;                      // optimizer steps done
  std::vector<int64_t> lost_ranks = {};  // in order; empty if only connections were lost
  int64_t lost_residuals = 0;            // ranks whose residuals (error feedback) are lost
  std::optional<double> seconds = {};    // from the loss, as rank 0 noticed it, to here; empty if rank 0 was lost
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
  virtual void on_shares(const SharesReport& /*report*/) {}
  virtual void on_absence(const AbsenceReport& /*report*/) {}
};

// Forwards every report to several observers, in the order in which they were added.
class Observers : public TrainingObserver {
 public:
  // Adds an observer that must outlive this object.
  void add(TrainingObserver& observer) { observers_.push_back(&observer); }
  void own(std::unique_ptr<TrainingObserver> observer);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_buckets(const BucketsReport& report) override;
  void on_hook(const HookReport& report) override;
  void on_shares(const SharesReport& report) override;
  void on_absence(const AbsenceReport& report) override;

 private:
  std::vector<TrainingObserver*> observers_;
  std::vector<std::unique_ptr<TrainingObserver>> owned_;
};

// The format and frequency of the line.
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
  // Ends the updated line with a line feed.
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_buckets(const BucketsReport& report) override;
  void on_hook(const HookReport& report) override;
  void on_shares(const SharesReport& report) override;
  void on_absence(const AbsenceReport& report) override;

 private:
  std::string position(int64_t step) const;
  void print_line(const std::string& line);
  void keep_line();

  std::ostream& out_;
  ProgressOptions options_;
  std::set<int64_t> nonfinite_ranks_;  // whose gradients were not finite so far; not every report has a line
  double next_line_at_ = 0;            // in seconds of the training
  bool line_is_open_ = false;          // whether the terminal's cursor is at the end of a line to be overwritten
};

}  // namespace narrowcast::reporting

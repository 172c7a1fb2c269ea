// What a training tells whoever watches it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace narrowcast::reporting {

// The state after some optimizer steps.
struct StepReport {
  int64_t step = 0;          // optimizer steps done
  double loss = 0;           // mean over all ranks and the steps since the previous report
  double learning_rate = 0;  // of the last step
  std::optional<double> gradient_norm =
      std::nullopt;                // of the last step, before clipping; none if gradients are not clipped
  double units_per_second = 0;     // all ranks, since the previous report; a unit is a token or a sample
  double seconds = 0;              // since the training began
  int64_t payload_bytes_sent = 0;  // by this rank since the training began, see CommHook::payload_bytes_sent
  int64_t skipped_steps = 0;       // since the training began, because a gradient was not finite
};

// A look at the held-out data.
struct EvaluationReport {
  int64_t step = 0;    // optimizer steps done
  double loss = 0;     // mean over the held-out batches of all ranks
  double seconds = 0;  // since the training began
};

// A checkpoint that is written.
struct CheckpointReport {
  int64_t step = 0;    // optimizer steps done
  std::string path;    // its folder
  int64_t bytes = 0;   // of all ranks
  double seconds = 0;  // that writing took
};

// Where a training goes on from.
struct ResumeReport {
  int64_t step = 0;     // optimizer steps done
  std::string path;     // of the checkpoint
  std::string changes;  // what is other than then; empty: nothing
};

// Called on one rank only.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;

  virtual void on_step(const StepReport& report) = 0;
  virtual void on_evaluation(const EvaluationReport& report) = 0;
  virtual void on_checkpoint(const CheckpointReport& /*report*/) {}
};

}  // namespace narrowcast::reporting

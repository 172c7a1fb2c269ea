// What a training counts.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/train/checkpoint/content.h"

namespace narrowcast::training {

struct Counters {
  int64_t step = 0;                       // optimizer steps done
  int64_t skipped_steps = 0;              // of those, for their gradients
  double seconds = 0;                     // of training, up to the last report
  double training_loss = 0;               // of the last report
  std::optional<double> validation_loss;  // of the last evaluation
  std::optional<double> gradient_norm;    // of the last step that was taken, before clipping
  // Since the last report:
  double window_loss = 0;  // of this rank, summed over the steps taken
  int64_t window_steps = 0;
  int64_t window_batches = 0;  // steps taken and skipped
  double window_seconds = 0;   // of training, before the interruption
};

// All but the step, into tensors: those that all ranks agree on and this rank's own.
void save_counters(const Counters& counters, checkpoint::Content& content);

// In a world of another size the sum over ranks of window_loss, divided by their number, stays the same. Throws
// CorruptInputError naming what is missing or no number.
Counters load_counters(const checkpoint::Restored& restored, int64_t world_size);

}  // namespace narrowcast::training

// The effect of hooks and formats on the loss of a training: paired trainings, seed by seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/numerics/simulated_hooks.h"
#include "tests/bench/numerics/simulated_training.h"

namespace narrowcast::bench {

// The losses of finished trainings. They allow a table that takes hours to be made in several runs.
class SavedLosses {
 public:
  // Reads the file `path`, one JSON object per line; creates it if it does not exist. Empty: nothing is kept.
  explicit SavedLosses(std::string path);

  // The loss of hook `name` in a training with this seed and mean: read from the file, or trained and added to it.
  double loss_of(const SimulationOptions& options, int64_t seed, const std::string& name,
                 const MeanOfRanks& mean) const;

 private:
  const std::string path_;
};

// The share of a table's trainings that a process does: those with number `index` modulo `count`.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

// Does a part of the trainings that print_losses needs.
void train_part(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                const Part& part, const SavedLosses& saved);

// Prints for each hook the difference between its loss and the exact mean's loss, averaged over the seeds 0 to `seeds`
// - 1, with the standard error. Returns whether all targets are met.
bool print_losses(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                  const SavedLosses& saved);

}  // namespace narrowcast::bench

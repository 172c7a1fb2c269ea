// What hooks and formats do to the loss of a training: paired trainings, seed by seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/numerics/simulated_hooks.h"
#include "tests/bench/numerics/simulated_training.h"

namespace narrowcast::bench {

// The losses of trainings that are done, so that a table which takes hours can be made in several runs.
class SavedLosses {
 public:
  // Of the file of that name, one JSON object per line, which is made if it is not there; empty: nothing is kept.
  explicit SavedLosses(std::string path);

  // The loss of hook `name` in a training with that seed and mean: as it is in the file, or trained and added to it.
  double loss_of(const SimulationOptions& options, int64_t seed, const std::string& name,
                 const MeanOfRanks& mean) const;

 private:
  const std::string path_;
};

// Which of the trainings of a table a process does: those whose number is `index` modulo `count`.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

// Does a part of the trainings that print_losses needs.
void train_part(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                const Part& part, const SavedLosses& saved);

// Prints, for each hook, the mean over the seeds 0 to `seeds` - 1 of the difference between its loss and
// that of the exact mean, with the standard error. Whether all targets are met.
bool print_losses(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                  const SavedLosses& saved);

}  // namespace narrowcast::bench

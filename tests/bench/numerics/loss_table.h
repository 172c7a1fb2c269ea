// What hooks and formats do to the loss of a training: paired trainings, seed by seed.
#pragma once

#include <cstdint>
#include <functional>
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

  // The loss of hook `name` in such a training: as it is in the file, or train(), which is added to it then.
  double get(const SimulationOptions& options, const std::string& name, const std::function<double()>& train) const;

 private:
  const std::string path_;
};

// Prints, for each hook, the mean over the seeds 0 to `seeds` - 1 of the difference between its validation loss and
// that of the exact mean, with the standard error. Whether all targets are met.
bool print_losses(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                  const SavedLosses& saved);

}  // namespace narrowcast::bench

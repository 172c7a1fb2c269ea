// A data-parallel training on one thread: the ranks take turns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/numerics/simulated_hooks.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::bench {

struct SimulationOptions {
  std::vector<std::string> data;  // Text files; empty: the project's own.
  int64_t ranks = 4;
  int64_t steps = 700;
  int64_t batch_size = 32;      // Sequences, over all ranks.
  double learning_rate = 3e-3;  // Of AdamW, its peak.
  int64_t seed = 0;
  MeanOfRanks mean = exact_mean;
};

// What one step's gradients are, before the optimizer uses them.
struct StepGradients {
  int64_t step;                     // From 1.
  std::vector<at::Tensor> by_rank;  // float32 [parameters] each, parameter after parameter.
  std::vector<int64_t> sizes;       // Elements of each parameter.
};

using Observer = std::function<void(const StepGradients&)>;

// Trains a char_gpt of about 110,000 parameters and returns the loss on the held-out text.
double simulate_training(const SimulationOptions& options, const Observer& observe);

}  // namespace narrowcast::bench

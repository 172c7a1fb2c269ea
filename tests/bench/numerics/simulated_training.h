// A data-parallel training on one thread: the ranks take turns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include <narrowcast/model.h>
#include "tests/bench/numerics/simulated_hooks.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::bench {

struct SimulationOptions {
  std::string model = models::CharGpt::kName;
  models::ModelOptions model_options = {};
  std::vector<std::string> data = {};  // Empty: Tiny Shakespeare.
  int64_t ranks = 4;
  int64_t steps = 700;
  int64_t batch_size = 32;      // Samples, over all ranks.
  double learning_rate = 3e-3;  // Of AdamW, its peak.
  // Whether parameters lie as in buckets of hooks that round in blocks (trainer/ddp/reducer/block_alignment.h). All are
  // in one.
  bool aligned = true;
  int64_t seed = 0;
  at::Device device = c10::kCPU;  // Where gradients and means are computed. The model is initialised on the CPU.
  bool tf32 = false;              // On a GPU, matrix products in TensorFloat-32.
  bool held_out = true;           // Whether the loss is of samples that were held out, or of those trained on.
  MeanOfRanks mean = no_hook;
};

using Observer = std::function<void(const StepGradients&)>;

// Trains the model and returns its loss.
double simulate_training(const SimulationOptions& options, const Observer& observe);

}  // namespace narrowcast::bench

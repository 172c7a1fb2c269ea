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
  int64_t batch_size = 32;      // Samples per step, over all ranks.
  double learning_rate = 3e-3;  // Peak learning rate of AdamW.
  // Whether parameters are laid out as in buckets of hooks that round in blocks
  // (trainer/ddp/reducer/block_alignment.h). There is a single bucket.
  bool aligned = true;
  int64_t seed = 0;
  at::Device device = c10::kCPU;  // Computes gradients and means. The model is initialised on the CPU.
  bool tf32 = false;              // On a GPU, computes matrix products in TensorFloat-32.
  bool held_out = true;           // Whether the loss is of held-out samples or of training samples.
  MeanOfRanks mean = no_hook;
};

using Observer = std::function<void(const StepGradients&)>;

// Trains the model and returns its loss.
double simulate_training(const SimulationOptions& options, const Observer& observe);

}  // namespace narrowcast::bench

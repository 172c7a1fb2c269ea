// The means over ranks that hooks give, computed in one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/comm/link/link.h"

namespace narrowcast::bench {

// What one step's gradients are, before the optimizer uses them.
struct StepGradients {
  int64_t step = 0;                      // From 1.
  std::vector<at::Tensor> by_rank = {};  // float32 [parameters] each, parameter after parameter.
  std::vector<int64_t> sizes = {};       // Elements of each parameter, in that order,
  std::vector<std::string> names = {};   // and what it is called.
};

// float32 [parameters] of each rank -> their mean.
using MeanOfRanks = std::function<at::Tensor(const StepGradients&)>;

// Without a hook: the sum in the order of ranks.
at::Tensor exact_mean(const std::vector<at::Tensor>& by_rank);
at::Tensor no_hook(const StepGradients& gradients);

// quantized_allreduce, bit for bit (tests/hooks compare the two), by the route that it takes on such a link.
at::Tensor wire_mean(const std::vector<at::Tensor>& by_rank, WireFormat format, const collectives::LinkCost& link = {});

struct SimulatedHook {
  std::string name;  // As docs/hooks.md has it, or the format of quantized_allreduce.
  MeanOfRanks mean;
  double most_lost = 0;  // The target: so much validation loss at most, more than with exact_mean.
};

// Every hook that loses something, what zeros alone do ("zeros_of_var5"), feedback ("fed_back_var5"), and parameters
// that are weighted by their sizes ("weighted_var4"): the reference hooks, bit for bit but for the order in which
// fp16_compress and bf16_compress sum, and quantized_allreduce in each format.
std::vector<SimulatedHook> simulated_hooks();

}  // namespace narrowcast::bench

// The means over ranks that hooks compute, in one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/comm/link/link.h"

namespace narrowcast::bench {

// The gradients of one step, before the optimizer uses them.
struct StepGradients {
  int64_t step = 0;                      // From 1.
  std::vector<at::Tensor> by_rank = {};  // float32 [parameters] each, parameter after parameter.
  std::vector<int64_t> sizes = {};       // Elements of each parameter, in that order,
  std::vector<std::string> names = {};   // and their names.
};

// Means float32 [parameters] over the ranks.
using MeanOfRanks = std::function<at::Tensor(const StepGradients&)>;

// The mean without a hook: the sum in the order of ranks, divided by their number.
at::Tensor exact_mean(const std::vector<at::Tensor>& by_rank);
at::Tensor no_hook(const StepGradients& gradients);

// The mean of quantized_allreduce, bit for bit (tests/hooks compare the two), by the route that it takes on this link.
at::Tensor wire_mean(const std::vector<at::Tensor>& by_rank, WireFormat format, const collectives::LinkCost& link = {});

struct SimulatedHook {
  std::string name;  // The name in docs/reference/hooks.md, or the format of quantized_allreduce.
  MeanOfRanks mean;
  double most_lost = 0;  // Target: the maximum increase of the validation loss over exact_mean.
};

// Every lossy hook: the reference hooks, and quantized_allreduce in each format. They are exact to the bit, except for
// the order in which fp16_compress and bf16_compress sum. Also variants: only a format's zeros ("zeros_of_var5"), error
// feedback ("fed_back_var5"), and parameters weighted by their magnitudes ("weighted_var4").
std::vector<SimulatedHook> simulated_hooks();

}  // namespace narrowcast::bench

// Where the parameters' gradients lie in a bucket.
#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "ops/collectives/wire/run.h"

namespace narrowcast::hooks {

// A parameter in a bucket.
struct ParameterRun {
  const void* parameter = nullptr;  // Its identity, the same in every step and every bucket.
  collectives::Run run;
  int64_t dimensions = 0;  // Of the parameter.
  bool operator==(const ParameterRun&) const = default;
};

// In the order of the bucket; empty for a bucket that names no parameters.
std::vector<ParameterRun> layout_of(const c10d::GradBucket& bucket);

// The runs of parameters with one dimension or none, in order; neighbours are one run.
std::vector<collectives::Run> one_dimensional_runs(const std::vector<ParameterRun>& layout);

}  // namespace narrowcast::hooks

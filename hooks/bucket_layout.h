// Where the parameters' gradients lie in a bucket.
#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "ops/collectives/mean/segments.h"

namespace narrowcast::hooks {

// A parameter in a bucket.
struct ParameterSegment {
  const void* parameter = nullptr;  // Its identity, the same in every step and every bucket.
  collectives::Segment segment;
  int64_t dimensions = 0;  // Of the parameter.
  bool operator==(const ParameterSegment&) const = default;
};

// In the order of the bucket; empty for a bucket that names no parameters.
std::vector<ParameterSegment> layout_of(const c10d::GradBucket& bucket);

// The segments of parameters with one dimension or none, in order; neighbours are one segment.
std::vector<collectives::Segment> one_dimensional_segments(const std::vector<ParameterSegment>& layout);

}  // namespace narrowcast::hooks

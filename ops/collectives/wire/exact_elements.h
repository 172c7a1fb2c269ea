// Elements that are too few and too important to be narrowed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/collectives/wire/run.h"

namespace narrowcast::collectives {

// Runs of an array that travel beside it, as float32. In the array they are 0 meanwhile: they cost bytes there, a small
// part of all, but do not widen the scales of their neighbours' blocks.
class ExactElements {
 public:
  // The segments are in order, do not overlap, and lie within the arrays given below, which are on `device`. There may
  // be none.
  explicit ExactElements(std::vector<Segment> segments, at::Device device = at::kCPU);

  const std::vector<Segment>& segments() const { return segments_; }

  // What was taken, float32 [sum of the segments' numel].
  const at::Tensor& values() const { return values_; }

  // `array`: 1-D, of any floating dtype.
  void take_from(const at::Tensor& array);
  void put_back(const at::Tensor& array) const;

 private:
  const std::vector<Segment> segments_;
  const at::Tensor values_;
};

}  // namespace narrowcast::collectives

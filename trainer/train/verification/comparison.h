// Two gradients compared element by element.
#pragma once

#include <ATen/core/Tensor.h>

namespace narrowcast::verification {

struct Comparison {
  double largest_absolute = 0;  // of |actual - expected|
  double largest_relative = 0;  // of |actual - expected| / |expected|, where expected is not zero
  double tolerance = 0;         // the largest of any element
  double worst_share = 0;       // of |actual - expected| / tolerance: up to 1 passes
  bool passed = true;           // every element is within its own tolerance
};

// All three of the same shape, compared in float64. A NaN or an infinity in either never passes.
Comparison compare(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& tolerance);

// What holds for both.
Comparison worse_of(const Comparison& a, const Comparison& b);

}  // namespace narrowcast::verification

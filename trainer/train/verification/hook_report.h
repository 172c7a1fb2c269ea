// The verdict on one hook, and a table of all hooks for people.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace narrowcast::verification {

// Two gradients compared element by element.
struct Comparison {
  double largest_absolute = 0;  // of |actual - expected|
  double largest_relative = 0;  // of |actual - expected| / |expected|, where expected is not zero
  double tolerance = 0;         // the largest tolerance of any element
  double worst_share = 0;       // of |actual - expected| / tolerance: up to 1 passes
  bool passed = true;           // every element is within its own tolerance
};

// All three have the same shape, and are compared in float64. A NaN or an infinity in either never passes.
Comparison compare(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& tolerance);

// Returns the values that cover both comparisons.
Comparison worse_of(const Comparison& a, const Comparison& b);

// One hook's verdict, the same on all ranks.
struct HookReport {
  std::string hook;
  int64_t node_size = 1;    // number of consecutive ranks per node
  bool has_shares = false;  // whether ranks have unequal numbers of samples (GradientProblem::weight)
  Comparison comparison;    // of every element, all ranks and both bucket layouts; with error feedback of their sums
  std::optional<bool> reference_passed =
      std::nullopt;                // whether the reference test's tolerances hold too; empty if they do not apply
  bool replicas_identical = true;  // all ranks end with the same bits
  int64_t payload_bytes_sent = 0;  // in one pass, by the rank that sends most
  double seconds = 0;              // of one pass, on the slowest rank

  bool passed() const { return comparison.passed && replicas_identical && reference_passed.value_or(true); }
};

// The name of a report's case: the hook's name, with ".nodes_of_K" if node_size is another K than 1, and ".shares" with
// unequal shares.
std::string name_of(const HookReport& report);

// A heading and one line per hook, columns aligned, each line with a line feed.
std::string gradient_table(const std::vector<HookReport>& reports);

}  // namespace narrowcast::verification

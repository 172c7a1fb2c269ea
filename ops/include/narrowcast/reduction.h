// How a collective combines the elements of all ranks, for code with LibTorch and without.
#pragma once

namespace narrowcast {

// Prints as the operators' `op`.
enum class Reduction {
  kMean,  // The sum, divided by the number of ranks. "mean"
  kSum,   // "sum"
};

}  // namespace narrowcast

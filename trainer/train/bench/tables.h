// The results as people read them. Each text ends its last line.
#pragma once

#include <string>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// One line: rate and round trip.
std::string link_text(const LinkRate& link);

// A line per format, with each rate's share of the memory's read rate.
std::string kernel_table(const KernelRates& kernels);

// A line per case and hook. A dash where a number cannot be had.
std::string hook_table(const BenchResults& results);

}  // namespace narrowcast::bench

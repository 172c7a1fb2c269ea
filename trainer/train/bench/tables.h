// The results for people: lines and tables of at most 160 columns. Each text ends its last line.
#pragma once

#include <string>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// One line: rate and round trip.
std::string link_text(const LinkRate& link);

// A table with a line per format and each rate's share of the memory's read rate.
std::string kernel_table(const KernelRates& kernels);

// One line: how many ranks, on how many nodes.
std::string ranks_text(const BenchResults& results);

// A table with a line per case and hook, and an empty line between cases; a dash stands where there is no number.
std::string hook_table(const BenchResults& results);

// A table with a line per size and hook, and an empty line between sizes. Of results whose exactness was checked.
std::string exactness_table(const BenchResults& results);

// A table with a line per fit_hooks; empty without any.
std::string fit_table(const BenchResults& results);

}  // namespace narrowcast::bench

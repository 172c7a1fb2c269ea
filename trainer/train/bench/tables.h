// The results of narrowcast-bench as text: lines and tables of at most 160 columns. Each text ends its last line.
#pragma once

#include <string>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// One line: rate and round trip.
std::string link_text(const LinkRate& link);

// A table with a line per format and each rate's share_of_memory.
std::string kernel_table(const KernelRates& kernels);

// One line: the number of ranks and nodes, the number of levels in which hooks of wire formats average, and whether
// buckets are on GPUs.
std::string ranks_text(const BenchResults& results);

// The path that is measured between ranks of one node, and how to measure a network. Empty for several nodes.
std::string one_node_text(const BenchResults& results);

// A table with a line per case and hook, and an empty line between cases; a dash replaces a missing number.
std::string hook_table(const BenchResults& results);

// A line for each case and hook that chose a way to send; empty if none did.
std::string decision_lines(const BenchResults& results);

// A table with a line per size and hook, and an empty line between sizes. Requires results with exactness.
std::string exactness_table(const BenchResults& results);

// A table with a line per entry of fit_hooks; empty without any.
std::string fit_table(const BenchResults& results);

}  // namespace narrowcast::bench

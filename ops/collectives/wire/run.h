// Parts of an array that ranks exchange.
#pragma once

#include <cstdint>
#include <vector>

namespace narrowcast::collectives {

// A run of elements of an array.
struct Run {
  int64_t begin = 0;  // First element.
  int64_t numel = 0;
  bool operator==(const Run& other) const { return begin == other.begin && numel == other.numel; }
};

// Cuts an array of `numel` elements into `parts` runs, in order and as even as it can be with each but the last run
// beginning and ending at a multiple of cpu::kWireGrain: then the runs' messages are the parts of the array's message,
// in every wire format. Runs are empty where there are more parts than grains.
std::vector<Run> cut(int64_t numel, int64_t parts);

// The same for a run of an array.
std::vector<Run> cut(const Run& run, int64_t parts);

}  // namespace narrowcast::collectives

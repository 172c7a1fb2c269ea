// Parts of an array that ranks exchange.
#pragma once

#include <cstdint>
#include <vector>

namespace narrowcast::collectives {

// Neighbouring elements of an array.
struct Segment {
  int64_t begin = 0;  // First element.
  int64_t numel = 0;
  bool operator==(const Segment& other) const { return begin == other.begin && numel == other.numel; }
};

// Cuts an array of `numel` elements into `parts` segments, in order and as even as it can be with each but the last
// segment beginning and ending at a multiple of cpu::kWireGrain: then the segments' messages are the parts of the
// array's message, in every wire format. Runs are empty where there are more parts than grains.
std::vector<Segment> cut(int64_t numel, int64_t parts);

// The same for a segment of an array.
std::vector<Segment> cut(const Segment& segment, int64_t parts);

}  // namespace narrowcast::collectives

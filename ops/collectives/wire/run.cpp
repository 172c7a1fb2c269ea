#include "ops/collectives/wire/run.h"

#include <algorithm>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

std::vector<Segment> cut(int64_t numel, int64_t parts) { return cut({0, numel}, parts); }

std::vector<Segment> cut(const Segment& segment, int64_t parts) {
  const int64_t grains = (segment.numel + cpu::kWireGrain - 1) / cpu::kWireGrain;
  const auto boundary = [&](int64_t part) {
    // grains * part / parts, without overflow.
    const int64_t grain = grains / parts * part + grains % parts * part / parts;
    return std::min(grain * cpu::kWireGrain, segment.numel);
  };
  std::vector<Segment> segments;
  for (int64_t part = 0; part < parts; ++part) {
    segments.push_back({segment.begin + boundary(part), boundary(part + 1) - boundary(part)});
  }
  return segments;
}

}  // namespace narrowcast::collectives

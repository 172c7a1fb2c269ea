#include "ops/collectives/wire/run.h"

#include <algorithm>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

std::vector<Run> cut(int64_t numel, int64_t parts) { return cut({0, numel}, parts); }

std::vector<Run> cut(const Run& run, int64_t parts) {
  const int64_t grains = (run.numel + cpu::kWireGrain - 1) / cpu::kWireGrain;
  const auto boundary = [&](int64_t part) {
    // grains * part / parts, without overflow.
    const int64_t grain = grains / parts * part + grains % parts * part / parts;
    return std::min(grain * cpu::kWireGrain, run.numel);
  };
  std::vector<Run> runs;
  for (int64_t part = 0; part < parts; ++part) {
    runs.push_back({run.begin + boundary(part), boundary(part + 1) - boundary(part)});
  }
  return runs;
}

}  // namespace narrowcast::collectives

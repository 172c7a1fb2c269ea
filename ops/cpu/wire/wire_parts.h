// Arrays cut up for threads where their messages can be cut. Only for files that narrowcast_parallel_sources names.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Calls body(first element, elements) for parts of n elements whose messages are parts of the whole message, on ATen's
// threads.
template <class Body>
void for_wire_parts(int64_t n, const Body& body) {
  constexpr int64_t kGrainsPerThread = 32;  // Worth a thread's start: some microseconds of work.
  const int64_t grains = (n + kWireGrain - 1) / kWireGrain;
  at::parallel_for(0, grains, kGrainsPerThread, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kWireGrain;
    body(first, std::min(end * kWireGrain, n) - first);
  });
}

}  // namespace narrowcast::cpu

// The kernels of the wire formats on this machine.
#pragma once

#include <cstdint>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

struct KernelOptions {
  int64_t elements = int64_t{1} << 25;  // float32: 128 MiB, more than a share of any cache
  int64_t turns = 9;                    // measured, after one to warm up
};

// On the calling thread alone. Reading the memory and the two kernels take turns; the median of the turns counts.
KernelRates measure_kernels(const KernelOptions& options = {});

}  // namespace narrowcast::bench

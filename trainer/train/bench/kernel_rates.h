// How fast the kernels of the wire formats are, on a processor's thread or on a GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// How much the kernels do while they are measured.
struct KernelOptions {
  // float32, more than a cache holds but for a small share: 128 MiB on the CPU, 1 GiB on a GPU.
  static int64_t elements_on(at::Device device) { return int64_t{1} << (device.is_cpu() ? 25 : 28); }

  int64_t elements = elements_on(at::kCPU);
  int64_t turns = 9;             // measured, after one to warm up
  at::Device device = at::kCPU;  // takes three times the elements' memory
};

// Encodes float32 in every wire format and decodes them again: on the CPU with one thread, on a GPU as all of its
// multiprocessors do. Moving memory (KernelRates::memory) and the two kernels take turns; the median of the turns
// counts.
KernelRates measure_kernels(const KernelOptions& options = {});

}  // namespace narrowcast::bench

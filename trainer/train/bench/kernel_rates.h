// Measures the speed of the wire formats' kernels, on one thread of the CPU or on a GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// How much the kernels process while they are measured.
struct KernelOptions {
  // Elements of float32, far more than caches hold: 128 MiB on the CPU, 1 GiB on a GPU.
  static int64_t elements_on(at::Device device) { return int64_t{1} << (device.is_cpu() ? 25 : 28); }

  int64_t elements = elements_on(at::kCPU);
  int64_t turns = 9;             // measured ones, after one to warm up
  at::Device device = at::kCPU;  // takes three times the elements' memory
};

// Encodes float32 in every wire format and decodes them again: with one thread on the CPU, with all multiprocessors on
// a GPU. Moving memory (KernelRates::memory) and the two kernels take turns; each result is the median of the turns.
KernelRates measure_kernels(const KernelOptions& options = {});

}  // namespace narrowcast::bench

// Compiles a CUDA kernel's source as C++ and runs it on the CPU: for tests of kernels on machines without a GPU or a
// CUDA toolkit.
//
//   #include "tests/support/cuda_on_host/cuda_on_host.h"  // __global__, threadIdx, __shfl_sync ... for the host
//   #include "ops/cuda/some_kernel.cuh"
//   run_kernel({.blocks = 3, .threads = 256}, [&] { some_kernel(x, y, n); });
//
// Blocks run one after another. The threads of a block take turns; a turn ends at the next barrier (__syncwarp,
// __shfl_sync, __syncthreads ...). It is an error if lanes wait for a lane that has ended or waits elsewhere.
//
// Such a test finds:
// - wrong bytes from the kernel's own arithmetic and indices;
// - a missing barrier between a thread that writes shared memory and one that reads it: one of the two orders of turns
//   reads too early;
// - misaligned vectors, if the kernel uses ops/cuda/launch/vectors.h.
//
// It does not find races between blocks or over global memory, effects of weaker memory orders, register use, speed, or
// errors that only nvcc reports. NaN bits that arithmetic produces are those of this processor.
#pragma once

#include <cstdint>
#include <functional>

// CUDA's types of the variables below.
struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// CUDA's variables for the running thread. Threads have one dimension, blocks two.
inline uint3 threadIdx = {0, 0, 0};
inline uint3 blockIdx = {0, 0, 0};
inline dim3 blockDim;
inline dim3 gridDim;

namespace narrowcast::cuda_on_host {

// The order in which threads take turns and blocks follow each other.
enum class Turns { kForward, kBackward };

// The number of threads, and their order.
struct Launch {
  int64_t blocks = 1;
  int64_t rows = 1;      // Each has `blocks` blocks: gridDim.y.
  int64_t threads = 32;  // Per block: a multiple of 32, at most 1024.
  Turns turns = Turns::kForward;
};

// Calls `kernel` once for every thread. Rethrows what a thread throws. Throws std::logic_error if threads deadlock or
// meet at different barriers, and std::invalid_argument for a launch that CUDA would reject.
void run_kernel(const Launch& launch, const std::function<void()>& kernel);

}  // namespace narrowcast::cuda_on_host

// Runs a CUDA kernel's source, compiled as C++, on the CPU: for tests of kernels on machines that have no GPU, and not
// even a toolkit.
//
//   #include "tests/support/cuda_on_host/cuda_on_host.h"  // __global__, threadIdx, __shfl_sync ... for the host
//   #include "ops/cuda/some_kernel.cuh"
//   run_kernel({.blocks = 3, .threads = 256}, [&] { some_kernel(x, y, n); });
//
// Blocks run one after another, a block's threads by turns, each up to the next barrier (__syncwarp, __shfl_sync,
// __syncthreads ...). Lanes that wait for one that has left, or that is elsewhere, are an error.
//
// What this shows: which bytes the kernel's own arithmetic and indices produce, and, with both orders of turns, a
// missing barrier between a thread that writes shared memory and one that reads it: one of the orders reads too early.
// Misaligned vectors it shows where the kernel uses ops/cuda/launch/vectors.h. What it does not show: races between
// blocks, or over global memory; weaker orders of memory; registers, speed, and whether nvcc compiles it. Bits of NaN
// that arithmetic makes are this processor's.
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

// CUDA's variables, of the thread that runs. Threads have one dimension, blocks two.
inline uint3 threadIdx = {0, 0, 0};
inline uint3 blockIdx = {0, 0, 0};
inline dim3 blockDim;
inline dim3 gridDim;

namespace narrowcast::cuda_on_host {

// In which order threads take turns, and blocks follow each other.
enum class Turns { kForward, kBackward };

// How many threads there are, and their order.
struct Launch {
  int64_t blocks = 1;
  int64_t rows = 1;      // Of so many blocks each: gridDim.y.
  int64_t threads = 32;  // Of a block: a multiple of 32, at most 1024.
  Turns turns = Turns::kForward;
};

// Calls `kernel` once for every thread. Throws what a thread throws, std::logic_error where threads wait in vain or
// meet at different points, std::invalid_argument for a launch that CUDA would refuse.
void run_kernel(const Launch& launch, const std::function<void()>& kernel);

}  // namespace narrowcast::cuda_on_host

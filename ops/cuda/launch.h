// What every launch of a kernel ends with. Free of LibTorch, like all that nvcc
// compiles: kernels are launched on a stream that the caller gives, on the device
// that is current.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace narrowcast::cuda {

// Throws std::runtime_error naming `kernel` if the last launch on this thread failed, for instance because the device
// is of a kind that the library has no code for. Does not wait: what goes wrong while the kernel runs is reported by a
// later call.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA kernel ") + kernel + " was not launched: " + cudaGetErrorString(error));
  }
}

}  // namespace narrowcast::cuda

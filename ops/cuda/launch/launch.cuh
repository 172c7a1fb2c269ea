// Common code of launches, independent of LibTorch like all code that nvcc compiles. Kernels are launched on a stream
// that the caller passes, on the current device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// The C++ type of a FloatType. The alias CudaFloat takes the type of the constant that visit_float_type passes.
template <FloatType kType>
struct CudaFloatOf;
template <>
struct CudaFloatOf<FloatType::kFloat32> {
  using Type = float;
};
template <>
struct CudaFloatOf<FloatType::kFloat64> {
  using Type = double;
};
template <>
struct CudaFloatOf<FloatType::kBfloat16> {
  using Type = __nv_bfloat16;
};
template <>
struct CudaFloatOf<FloatType::kFloat16> {
  using Type = __half;
};
template <class Constant>
using CudaFloat = typename CudaFloatOf<Constant::value>::Type;

// Calls launch(), which launches `kernel`. Throws a std::runtime_error that names the kernel if that fails, for
// instance because the library has no code for this kind of device, or if something failed before. Does not wait: an
// error while the kernel runs is reported by a later call.
template <class Launch>
void checked_launch(const char* kernel, const Launch& launch) {
  const auto last_error = [] {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  };
  launch_between_looks(kernel, last_error, launch);
}

}  // namespace narrowcast::cuda

// What launches share. Free of LibTorch, like all that nvcc compiles: kernels are launched on a stream that the caller
// gives, on the device that is current.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/launch/launch_arguments.h"

namespace narrowcast::cuda {

// The C++ type of a FloatType. An alias takes the constant that visit_float_type gives: CudaFloat<decltype(constant)>.
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

// Calls launch(), which launches `kernel`. Throws std::runtime_error naming it if that fails, for instance because the
// device is of a kind that the library has no code for, or if something failed before. Does not wait: what goes wrong
// while the kernel runs is reported by a later call.
template <class Launch>
void checked_launch(const char* kernel, const Launch& launch) {
  const auto last_error = [] {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  };
  launch_between_looks(kernel, last_error, launch);
}

}  // namespace narrowcast::cuda

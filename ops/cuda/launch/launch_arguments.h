// What launches of kernels are given: dtypes of floats, rows of them, and a stream. Free of LibTorch and of the CUDA
// toolkit: nvcc compiles it, and so do tests where there is no toolkit. tensor_arguments.h makes these from tensors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "ops/codec/host_device.h"

// Before a template for CPU and GPU that calls a function of its caller's: nvcc does not ask for which of them it is.
#if defined(__CUDACC__)
#define NARROWCAST_CALLS_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define NARROWCAST_CALLS_ANY_SIDE
#endif

struct CUstream_st;

namespace narrowcast::cuda {

// The toolkit's cudaStream_t.
using Stream = CUstream_st*;

// The dtypes of floats.
enum class FloatType { kFloat32, kFloat64, kBfloat16, kFloat16 };

// A FloatType that is known at compile time.
template <FloatType kType>
using FloatTypeConstant = std::integral_constant<FloatType, kType>;

// For a number that is no FloatType, or one that nothing is compiled for: std::invalid_argument; on a GPU, where the
// host has checked it before, the kernel ends with an error.
#if defined(__CUDA_ARCH__)
__device__ inline void refuse_float_type(FloatType) { __trap(); }
#else
[[noreturn]] NARROWCAST_HOST_DEVICE inline void refuse_float_type(FloatType type) {
  throw std::invalid_argument("no CUDA kernel for FloatType " + std::to_string(static_cast<int>(type)));
}
#endif

// visitor(FloatTypeConstant) of `type`. For launches, and for kernels that are compiled once for all dtypes: there all
// threads go the same way.
NARROWCAST_CALLS_ANY_SIDE
template <class Visitor>
NARROWCAST_HOST_DEVICE inline void visit_float_type(FloatType type, const Visitor& visitor) {
  switch (type) {
    case FloatType::kFloat32:
      return visitor(FloatTypeConstant<FloatType::kFloat32>());
    case FloatType::kFloat64:
      return visitor(FloatTypeConstant<FloatType::kFloat64>());
    case FloatType::kBfloat16:
      return visitor(FloatTypeConstant<FloatType::kBfloat16>());
    case FloatType::kFloat16:
      return visitor(FloatTypeConstant<FloatType::kFloat16>());
  }
  refuse_float_type(type);
}

// The same for launches of kernels that are not compiled for float64.
template <class Visitor>
void visit_narrow_float_type(FloatType type, const Visitor& visitor) {
  visit_float_type(type, [&](auto constant) {
    if constexpr (decltype(constant)::value == FloatType::kFloat64) {
      refuse_float_type(type);
    } else {
      visitor(constant);
    }
  });
}

// std::invalid_argument for a number that is no FloatType.
inline void check_float_type(FloatType type) {
  visit_float_type(type, [](auto) {});
}

// Calls launch(), which launches `kernel`. last_error() gives, and forgets, the text of what has failed on this thread,
// or null. Throws std::runtime_error naming the kernel if launching it fails; also if something else had failed before,
// which the text says: then the kernel is not launched.
template <class LastError, class Launch>
void launch_between_looks(const char* kernel, const LastError& last_error, const Launch& launch) {
  if (const char* const error = last_error()) {
    throw std::runtime_error(std::string("CUDA kernel ") + kernel +
                             " is not launched, as something else left an error behind on this thread: " + error);
  }
  launch();
  if (const char* const error = last_error()) {
    throw std::runtime_error(std::string("CUDA kernel ") + kernel + " was not launched: " + error);
  }
}

// Rows of floats, one after the other on the device: [rows, row_size].
struct FloatRows {
  const void* x;
  FloatType type;
  int64_t rows;
  int64_t row_size;
};

}  // namespace narrowcast::cuda

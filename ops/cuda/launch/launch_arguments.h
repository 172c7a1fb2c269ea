// Arguments of kernel launches: dtypes of floats, rows of floats, and a stream. Independent of LibTorch and of the CUDA
// toolkit: nvcc compiles this file, and so do tests without a toolkit. tensor_arguments.h makes these arguments from
// tensors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "ops/codec/host_device.h"

struct CUstream_st;

namespace narrowcast::cuda {

// The toolkit's cudaStream_t.
using Stream = CUstream_st*;

// The dtypes of floats.
enum class FloatType { kFloat32, kFloat64, kBfloat16, kFloat16 };

// A FloatType that is known at compile time.
template <FloatType kType>
using FloatTypeConstant = std::integral_constant<FloatType, kType>;

// Rejects a value that is not a FloatType, or for which no kernel is compiled. On the host it throws
// std::invalid_argument. On a GPU, where the host has checked the value before, it stops the kernel with an error.
#if defined(__CUDA_ARCH__)
__device__ inline void refuse_float_type(FloatType) { __trap(); }
#else
[[noreturn]] NARROWCAST_HOST_DEVICE inline void refuse_float_type(FloatType type) {
  throw std::invalid_argument("no CUDA kernel for FloatType " + std::to_string(static_cast<int>(type)));
}
#endif

// Calls visitor(FloatTypeConstant) for `type`. Used by launches, and by kernels that are compiled once for all dtypes:
// there all threads take the same branch.
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

// Throws std::invalid_argument if `type` is not a valid FloatType.
inline void check_float_type(FloatType type) {
  visit_float_type(type, [](auto) {});
}

// Calls launch(), which launches `kernel`. last_error() returns the text of the last error of this thread, or null, and
// clears it. Throws a std::runtime_error that names the kernel if the launch fails. If there already is an error before
// the launch, throws one with that error's text instead, and does not launch the kernel.
template <class LastError, class Launch>
void launch_between_looks(const char* kernel, const LastError& last_error, const Launch& launch) {
  if (const char* const error = last_error()) {
    throw std::runtime_error(std::string("CUDA kernel ") + kernel +
                             " was not launched, because an earlier CUDA call on this thread failed: " + error);
  }
  launch();
  if (const char* const error = last_error()) {
    throw std::runtime_error(std::string("CUDA kernel ") + kernel + " was not launched: " + error);
  }
}

// Rows of floats, contiguous on the device: [rows, row_size].
struct FloatRows {
  const void* x;
  FloatType type;
  int64_t rows;
  int64_t row_size;
};

}  // namespace narrowcast::cuda

#include "ops/cuda/wire/sparse_kernels.h"

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/wire/sparse_kernels.cuh"

namespace narrowcast::cuda {

void sparse_encode(const SparseEncodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n == 0) {
    return;
  }
  checked_launch("sparse_encode_kernel",
                 [&] { sparse_encode_kernel<<<sparse_blocks(arguments.n), kSparseThreads, 0, stream>>>(arguments); });
}

void sparse_average(const SparseAverageArguments& arguments, Stream stream) {
  check_parts(arguments.parts);
  check_float_type(arguments.type);
  if (arguments.parts.n == 0) {
    return;
  }
  checked_launch("sparse_average_kernel", [&] {
    sparse_average_kernel<<<sparse_blocks(arguments.parts.n), kSparseThreads, 0, stream>>>(arguments);
  });
}

}  // namespace narrowcast::cuda

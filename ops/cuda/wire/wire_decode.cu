#include <cuda_pipeline_primitives.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/wire/wire_decode_kernel.cuh"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/cuda/wire/wire_launch.cuh"

namespace narrowcast::cuda {

void wire_decode(WireFormat format, const DecodeArguments& arguments, cudaStream_t stream) {
  check_type(arguments.type);
  if (arguments.n == 0) {
    return;
  }
  codec::wire::visit(format, [&](auto format_type) {
    wire_decode_kernel<decltype(format_type)><<<blocks_for(arguments.n), kThreadsPerBlock, 0, stream>>>(arguments);
  });
  check_launch("wire_decode_kernel");
}

}  // namespace narrowcast::cuda

#include <cuda_pipeline_primitives.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/wire/wire_encode_kernel.cuh"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/cuda/wire/wire_launch.cuh"

namespace narrowcast::cuda {

void wire_encode(WireFormat format, const EncodeArguments& arguments, cudaStream_t stream) {
  check_type(arguments.type);
  if (arguments.n == 0) {
    return;
  }
  codec::wire::visit(format, [&](auto format_type) {
    using Format = decltype(format_type);
    const unsigned blocks = blocks_for(arguments.n);
    if (arguments.residual != nullptr) {
      wire_encode_kernel<Format, true><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
    } else {
      wire_encode_kernel<Format, false><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
    }
  });
  check_launch("wire_encode_kernel");
}

}  // namespace narrowcast::cuda

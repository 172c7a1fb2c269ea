#include <cuda_pipeline_primitives.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/wire/wire_average_kernel.cuh"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/cuda/wire/wire_launch.cuh"

namespace narrowcast::cuda {

void wire_average(WireFormat format, const AverageArguments& arguments, cudaStream_t stream) {
  check_parts(arguments.parts);
  if (arguments.parts.n == 0) {
    return;
  }
  codec::wire::visit(format, [&](auto format_type) {
    wire_average_kernel<decltype(format_type)>
        <<<blocks_for(arguments.parts.n), kThreadsPerBlock, 0, stream>>>(arguments);
  });
  check_launch("wire_average_kernel");
}

}  // namespace narrowcast::cuda

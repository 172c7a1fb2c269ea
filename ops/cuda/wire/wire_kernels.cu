#include "ops/cuda/wire/wire_kernels.h"

#include <cuda_pipeline_primitives.h>

#include "ops/codec/wire_format.h"
#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/wire/wire_kernels.cuh"

namespace narrowcast::cuda {

namespace {

// Whether there are no messages, or only empty ones.
bool is_empty(const Shards& shards) { return shards.slots() == 0 || (shards.of_chunk && shards.most_grains() == 0); }

}  // namespace

void wire_encode(WireFormat format, const EncodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n == 0 || is_empty(arguments.shards)) {
    return;
  }
  checked_launch("wire_encode_kernel", [&] {
    codec::wire::visit_fixed(format, [&](auto format_type) {
      using Format = decltype(format_type);
      const dim3 blocks(blocks_for(arguments.n, arguments.shards), arguments.shards.slots());
      if (arguments.residual != nullptr) {
        wire_encode_kernel<Format, true><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
      } else {
        wire_encode_kernel<Format, false><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
      }
    });
  });
}

void wire_decode(WireFormat format, const DecodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n == 0 || is_empty(arguments.shards)) {
    return;
  }
  const dim3 blocks(blocks_for(arguments.n, arguments.shards), arguments.shards.slots());
  checked_launch("wire_decode_kernel", [&] {
    codec::wire::visit_fixed(format, [&](auto format_type) {
      wire_decode_kernel<decltype(format_type)><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
    });
  });
}

void wire_average(WireFormat format, const AverageArguments& arguments, Stream stream) {
  check_parts(arguments.parts);
  if (arguments.parts.n == 0) {
    return;
  }
  checked_launch("wire_average_kernel", [&] {
    codec::wire::visit_fixed(format, [&](auto format_type) {
      wire_average_kernel<decltype(format_type)>
          <<<blocks_for(arguments.parts.n), kThreadsPerBlock, 0, stream>>>(arguments);
    });
  });
}

void wire_average_encode(WireFormat format, const AverageEncodeArguments& arguments, Stream stream) {
  check_parts(arguments.parts);
  if (arguments.parts.n == 0) {
    return;
  }
  checked_launch("wire_average_encode_kernel", [&] {
    codec::wire::visit_fixed(format, [&](auto format_type) {
      using Format = decltype(format_type);
      const unsigned blocks = blocks_for(arguments.parts.n);
      if (arguments.parts.own_residual != nullptr || arguments.mean_residual != nullptr) {
        wire_average_encode_kernel<Format, true><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
      } else {
        wire_average_encode_kernel<Format, false><<<blocks, kThreadsPerBlock, 0, stream>>>(arguments);
      }
    });
  });
}

}  // namespace narrowcast::cuda

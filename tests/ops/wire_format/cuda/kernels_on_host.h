// The CUDA kernels of the wire formats, run on the CPU: ops/cuda/wire/wire_kernels.h with an order of turns instead of
// a stream.
#pragma once

#include "tests/support/cuda_on_host/cuda_on_host.h"

// Must follow cuda_on_host.h, because they are CUDA C++.
#include "ops/cuda/wire/wire_kernels.cuh"

namespace narrowcast::cuda_on_host {

using cuda::FloatType;

// Calls body(format) with a value of the format's type in every thread of a launch over n elements.
template <class Body>
void run_over(WireFormat format, int64_t n, Turns turns, const Body& body, const cuda::Shards& shards = {}) {
  if (n == 0 || shards.slots() == 0 || (shards.of_chunk && shards.most_grains() == 0)) return;
  codec::wire::visit_fixed(format, [&](auto type) {
    run_kernel({.blocks = cuda::blocks_for(n, shards),
                .rows = shards.slots(),
                .threads = cuda::kThreadsPerBlock,
                .turns = turns},
               [&] { body(type); });
  });
}

inline void wire_encode(WireFormat format, const cuda::EncodeArguments& arguments, Turns turns) {
  const auto body = [&](auto type) {
    arguments.residual != nullptr ? cuda::wire_encode_kernel<decltype(type), true>(arguments)
                                  : cuda::wire_encode_kernel<decltype(type), false>(arguments);
  };
  run_over(format, arguments.n, turns, body, arguments.shards);
}

inline void wire_decode(WireFormat format, const cuda::DecodeArguments& arguments, Turns turns) {
  const auto body = [&](auto type) { cuda::wire_decode_kernel<decltype(type)>(arguments); };
  run_over(format, arguments.n, turns, body, arguments.shards);
}

inline void wire_average(WireFormat format, const cuda::AverageArguments& arguments, Turns turns) {
  run_over(format, arguments.parts.n, turns, [&](auto type) { cuda::wire_average_kernel<decltype(type)>(arguments); });
}

inline void wire_average_encode(WireFormat format, const cuda::AverageEncodeArguments& arguments, Turns turns) {
  run_over(format, arguments.parts.n, turns, [&](auto type) {
    arguments.parts.own_residual != nullptr || arguments.mean_residual != nullptr
        ? cuda::wire_average_encode_kernel<decltype(type), true>(arguments)
        : cuda::wire_average_encode_kernel<decltype(type), false>(arguments);
  });
}

}  // namespace narrowcast::cuda_on_host

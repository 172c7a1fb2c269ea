// The CUDA kernels of the variable formats, run on the CPU: ops/cuda/wire/variable_kernels.h with an order of turns in
// the place of a stream, chunks of any size, and scratch memory that nobody has cleared.
#pragma once

#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

// After it: they are written in CUDA C++.
#include "ops/cuda/wire/variable_kernels.cuh"

namespace narrowcast::cuda_on_host {

// What launches a kernel, as launch_encoding and launch_averaging want it.
inline auto launch_in(Turns turns) {
  return [turns](const char*, const cuda::LaunchGrid& grid, auto* kernel, const auto&... arguments) {
    run_kernel({.blocks = grid.blocks, .rows = grid.rows, .threads = grid.threads, .turns = turns},
               [&] { kernel(arguments...); });
  };
}

inline void variable_encode(cuda::VariableEncodeArguments arguments, int64_t least_chunk, Turns turns) {
  if (arguments.n == 0) return;
  const cuda::VariableChunks chunks = cuda::variable_chunks(arguments.n, least_chunk);
  test::PlacedArray<uint8_t> scratch(cuda::encode_scratch(chunks), 0);
  arguments.scratch = scratch.data();
  cuda::launch_encoding(cuda::encoding_of(arguments, chunks), launch_in(turns));
  scratch.values();  // Looks at what is around them.
}

inline void variable_average(cuda::VariableAverageArguments arguments, int64_t least_chunk, Turns turns) {
  if (arguments.parts.n == 0) return;
  const cuda::VariableChunks chunks = cuda::variable_chunks(arguments.parts.n, least_chunk);
  test::PlacedArray<uint8_t> scratch(cuda::average_scratch(chunks, arguments.parts.ranks), 0);
  arguments.scratch = scratch.data();
  cuda::launch_averaging(cuda::averaging_of(arguments, chunks), launch_in(turns));
  scratch.values();
}

}  // namespace narrowcast::cuda_on_host

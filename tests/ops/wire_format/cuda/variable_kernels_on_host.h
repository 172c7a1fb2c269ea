// The CUDA kernels of the variable formats, run on the CPU: ops/cuda/wire/variable_kernels.h with an order of turns
// instead of a stream. Chunks have any size, and scratch memory is not cleared.
#pragma once

#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"

// Must follow cuda_on_host.h, because they are CUDA C++.
#include "ops/cuda/wire/variable_kernels.cuh"

namespace narrowcast::cuda_on_host {

// A function that launches a kernel, for launch_encoding and launch_averaging.
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
  scratch.values();  // Checks the guard bytes.
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

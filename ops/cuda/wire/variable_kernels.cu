#include "ops/cuda/wire/variable_kernels.h"

#include <cuda_pipeline_primitives.h>

#include <stdexcept>
#include <string>

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/wire/variable_kernels.cuh"

namespace narrowcast::cuda {

namespace {

// A function that launches a kernel on a stream, for launch_encoding and launch_averaging.
auto launch_on(Stream stream) {
  return [stream](const char* name, const LaunchGrid& grid, auto* kernel, const auto&... arguments) {
    const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.rows));
    checked_launch(name, [&] { kernel<<<blocks, static_cast<unsigned>(grid.threads), 0, stream>>>(arguments...); });
  };
}

}  // namespace

int64_t variable_encode_scratch(int64_t n) { return n == 0 ? 0 : encode_scratch(variable_chunks(n)); }

int64_t variable_average_scratch(int64_t n, int64_t ranks) {
  return n == 0 ? 0 : average_scratch(variable_chunks(n), ranks);
}

void variable_encode(const VariableEncodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n > 0) {
    launch_encoding(encoding_of(arguments, variable_chunks(arguments.n)), launch_on(stream));
  }
}

void variable_average(const VariableAverageArguments& arguments, Stream stream) {
  constexpr int64_t kMostRanks = 65'535;  // Rows of a grid.
  check_parts(arguments.parts);
  check_float_type(arguments.type);
  if (arguments.parts.ranks > kMostRanks) {
    throw std::invalid_argument("a mean on a GPU supports at most " + std::to_string(kMostRanks) + " ranks, but has " +
                                std::to_string(arguments.parts.ranks));
  }
  if (arguments.parts.n > 0) {
    launch_averaging(averaging_of(arguments, variable_chunks(arguments.parts.n)), launch_on(stream));
  }
}

}  // namespace narrowcast::cuda

#include "ops/cuda/wire/variable_kernels.h"

#include <cuda_pipeline_primitives.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/wire/variable_kernels.cuh"

namespace narrowcast::cuda {

namespace {

// What launches a kernel on a stream, for launch_encoding and launch_decoding.
auto launch_on(Stream stream) {
  return [stream](const char* name, int64_t blocks, int threads, auto* kernel, const auto&... arguments) {
    checked_launch(name, [&] {
      kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(arguments...);
    });
  };
}

}  // namespace

int64_t variable_encode_scratch(int64_t n) { return n == 0 ? 0 : encode_scratch(variable_chunks(n)); }

int64_t variable_decode_scratch(int64_t n) { return n == 0 ? 0 : decode_scratch(variable_chunks(n)); }

void variable_encode(const VariableEncodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n > 0) {
    launch_encoding(encoding_of(arguments, variable_chunks(arguments.n)), launch_on(stream));
  }
}

void variable_decode(const VariableDecodeArguments& arguments, Stream stream) {
  check_float_type(arguments.type);
  if (arguments.n > 0) {
    launch_decoding(decoding_of(arguments, variable_chunks(arguments.n)), launch_on(stream));
  }
}

}  // namespace narrowcast::cuda

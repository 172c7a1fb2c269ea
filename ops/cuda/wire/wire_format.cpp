// The operators encode and decode on CUDA devices. They pass tensors as pointers, on their device's current stream.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/wire/sparse_kernels.h"
#include "ops/cuda/wire/variable_kernels.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/operators/wire_format_meta.h"

namespace narrowcast::cuda {
namespace {

int bits_of(WireFormat format) { return static_cast<int>(codec::wire::code_bits(format)); }

// The allocator may reuse its memory once this is destroyed, but only for work enqueued later on the current stream.
at::Tensor scratch_on(at::Device device, int64_t bytes) {
  return at::empty({bytes}, at::device(device).dtype(at::kByte));
}

void encode_variable(WireFormat format, const EncodeArguments& arguments, at::Device device) {
  const at::Tensor scratch = scratch_on(device, variable_encode_scratch(arguments.n));
  variable_encode({.bits_per_element = bits_of(format),
                   .type = arguments.type,
                   .x = arguments.x,
                   .n = arguments.n,
                   .rounding = arguments.rounding,
                   .message = arguments.message,
                   .scratch = scratch.mutable_data_ptr()},
                  c10::cuda::getCurrentCUDAStream());
}

void decode_variable(WireFormat format, const DecodeArguments& arguments, at::Device device) {
  const at::Tensor scratch = scratch_on(device, variable_average_scratch(arguments.n, 1));
  variable_average({.bits_per_element = bits_of(format),
                    .parts = only_message(arguments.message, arguments.n),
                    .type = arguments.type,
                    .mean = arguments.out,
                    .scratch = scratch.mutable_data_ptr()},
                   c10::cuda::getCurrentCUDAStream());
}

at::Tensor encode(const at::Tensor& x, std::string_view format_name, std::optional<int64_t> seed, int64_t step,
                  int64_t offset) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor bytes = meta::encode(x, format_name, seed, step, offset);
  const WireFormat format = parse_wire_format(format_name);
  const at::Tensor source = x.contiguous();
  const Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), static_cast<uint64_t>(step),
                          static_cast<uint64_t>(offset)};
  const EncodeArguments arguments{.type = float_type_of(x.scalar_type()),
                                  .x = source.const_data_ptr(),
                                  .n = x.numel(),
                                  .rounding = rounding,
                                  .message = bytes.mutable_data_ptr<uint8_t>()};
  if (codec::wire::is_sparse(format)) {
    sparse_encode({.per_mille = codec::wire::kept_per_mille(format),
                   .type = arguments.type,
                   .x = arguments.x,
                   .n = arguments.n,
                   .message = arguments.message},
                  c10::cuda::getCurrentCUDAStream());
  } else if (codec::wire::is_variable(format)) {
    encode_variable(format, arguments, x.device());
  } else {
    wire_encode(format, arguments, c10::cuda::getCurrentCUDAStream());
  }
  return bytes;
}

at::Tensor decode(const at::Tensor& bytes, std::string_view format_name, c10::SymInt numel) {
  const c10::cuda::CUDAGuard guard(bytes.device());
  at::Tensor decoded = meta::decode(bytes, format_name, numel);
  const WireFormat format = parse_wire_format(format_name);
  const at::Tensor source = bytes.contiguous();
  const DecodeArguments arguments{
      .message = source.const_data_ptr<uint8_t>(), .n = decoded.numel(), .out = decoded.mutable_data_ptr<float>()};
  if (codec::wire::is_sparse(format)) {
    sparse_average({.per_mille = codec::wire::kept_per_mille(format),
                    .parts = only_message(arguments.message, arguments.n),
                    .type = arguments.type,
                    .mean = arguments.out},
                   c10::cuda::getCurrentCUDAStream());
  } else if (codec::wire::is_variable(format)) {
    decode_variable(format, arguments, bytes.device());
  } else {
    wire_decode(format, arguments, c10::cuda::getCurrentCUDAStream());
  }
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) {
  m.impl("encode", &encode);
  m.impl("decode", &decode);
}

}  // namespace narrowcast::cuda

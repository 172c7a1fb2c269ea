// The operators encode and decode on CUDA devices: tensors to pointers, on the current stream of their device.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include <narrowcast/wire_format.h>
#include "ops/cuda/tensor_arguments.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/meta/meta.h"

namespace narrowcast::cuda {
namespace {

at::Tensor encode(const at::Tensor& x, std::string_view format_name, std::optional<int64_t> seed, int64_t step,
                  int64_t offset) {
  const c10::cuda::CUDAGuard guard(x.device());
  check_travels(parse_wire_format(format_name), c10::kCUDA);
  at::Tensor bytes = meta::encode(x, format_name, seed, step, offset);
  const at::Tensor source = x.contiguous();
  const Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), static_cast<uint64_t>(step),
                          static_cast<uint64_t>(offset)};
  wire_encode(parse_wire_format(format_name),
              {.type = float_type_of(x.scalar_type()),
               .x = source.const_data_ptr(),
               .n = x.numel(),
               .rounding = rounding,
               .message = bytes.mutable_data_ptr<uint8_t>()},
              c10::cuda::getCurrentCUDAStream());
  return bytes;
}

at::Tensor decode(const at::Tensor& bytes, std::string_view format_name, c10::SymInt numel) {
  const c10::cuda::CUDAGuard guard(bytes.device());
  check_travels(parse_wire_format(format_name), c10::kCUDA);
  at::Tensor decoded = meta::decode(bytes, format_name, numel);
  const at::Tensor source = bytes.contiguous();
  wire_decode(
      parse_wire_format(format_name),
      {.message = source.const_data_ptr<uint8_t>(), .n = decoded.numel(), .out = decoded.mutable_data_ptr<float>()},
      c10::cuda::getCurrentCUDAStream());
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) {
  m.impl("encode", &encode);
  m.impl("decode", &decode);
}

}  // namespace narrowcast::cuda

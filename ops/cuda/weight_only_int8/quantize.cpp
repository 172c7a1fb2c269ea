// dynamically_quantize_per_channel on CUDA: passes tensors as pointers. Work is enqueued on the current stream of x's
// device; the host does not wait for it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>

#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/weight_only_int8/quantize.h"
#include "ops/operators/weight_only_int8.h"
#include "ops/operators/weight_only_int8_meta.h"

namespace narrowcast::cuda {
namespace {

CodeType code_type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return CodeType::kInt8;
    case at::kByte:
      return CodeType::kUint8;
    case at::kShort:
      return CodeType::kInt16;
    default:
      TORCH_CHECK_TYPE(false, "no CUDA kernel for codes of ", dtype);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamically_quantize_per_channel(const at::Tensor& x, int64_t quant_min,
                                                                                int64_t quant_max,
                                                                                at::ScalarType target_dtype) {
  auto outputs = meta::dynamically_quantize_per_channel(x, quant_min, quant_max, target_dtype);
  const auto& [codes, scales, zero_points] = outputs;
  if (x.size(0) == 0) return outputs;
  const c10::cuda::CUDAGuard guard(x.device());
  const codec::CodeRange range{static_cast<int32_t>(quant_min), static_cast<int32_t>(quant_max)};
  if (x.scalar_type() == at::kDouble) {
    composite::quantize_per_channel_float64(x, range, codes, scales);
    zero_points.zero_();
    return outputs;
  }
  const Stream stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor source = x.contiguous();
  const FloatRows rows = rows_of(source, x.size(0));
  const at::Tensor workspace =
      at::empty({symmetric_scales_workspace(rows.rows, rows.row_size)}, x.options().dtype(at::kByte));
  launch_symmetric_scales(rows, range, workspace.mutable_data_ptr(),
                          {scales.mutable_data_ptr(), zero_points.mutable_data_ptr<int64_t>()}, stream);
  launch_symmetric_codes(rows, scales.const_data_ptr(), range, {codes.mutable_data_ptr(), code_type_of(target_dtype)},
                         stream);
  return outputs;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) {
  m.impl("dynamically_quantize_per_channel", &dynamically_quantize_per_channel);
}

}  // namespace narrowcast::cuda

// FP16 and BFP16 on CUDA: passes tensors as pointers. Work is enqueued on the current stream of the tensor's device;
// the host does not wait for it.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include <narrowcast/quantize_tensor.h>
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/cuda/quantize_tensor/quantize_tensor.h"
#include "ops/operators/quantize_tensor_meta.h"

namespace narrowcast::cuda {
namespace {

at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype) {
  at::Tensor q = meta::quantize_tensor(x, qtype);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor source = x.contiguous();
  const auto launch = parse_dquant_type(qtype) == DQuantType::kFp16 ? &launch_encode_fp16 : &launch_encode_bfp16;
  launch(source.const_data_ptr(), float_type_of(x.scalar_type()), x.numel(),
         static_cast<uint16_t*>(q.mutable_data_ptr()), c10::cuda::getCurrentCUDAStream());
  return q;
}

// PyTorch's CUDA kernels replace a division by a number by a product with its reciprocal, rounded once.
float reciprocal(double quant_loss) { return static_cast<float>(1.0 / quant_loss); }

at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double> quant_loss) {
  at::Tensor decoded = meta::dequantize_tensor(q, qtype, quant_loss);
  const c10::cuda::CUDAGuard guard(q.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor source = q.contiguous();
  const auto* codes = static_cast<const uint16_t*>(source.const_data_ptr());
  auto* const out = decoded.mutable_data_ptr<float>();
  const bool is_fp16 = parse_dquant_type(qtype) == DQuantType::kFp16;
  if (!quant_loss) {
    is_fp16 ? launch_decode_fp16(codes, q.numel(), out, stream) : launch_decode_bfp16(codes, q.numel(), out, stream);
    return decoded;
  }
  const ScaledCodes scaled{codes, reciprocal(*quant_loss)};
  is_fp16 ? launch_decode_fp16(scaled, q.numel(), out, stream) : launch_decode_bfp16(scaled, q.numel(), out, stream);
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) {
  m.impl("quantize_tensor", &quantize_tensor);
  m.impl("dequantize_tensor", &dequantize_tensor);
}

}  // namespace narrowcast::cuda

// PyTorch's quantization.py for FP16 and BFP16, as ATen operators and its internal operators, and test inputs.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <utility>
#include <vector>

#include <narrowcast/quantize_tensor.h>
#include "tests/ops/affine_uint8/reference.h"

namespace narrowcast::test {

inline const std::vector<DQuantType> kDQuantTypes{DQuantType::kFp16, DQuantType::kBfp16};
inline const std::vector<at::ScalarType> kFloatTypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

inline at::Tensor call_upstream(const char* name, const at::Tensor& rows) {
  torch::jit::Stack stack{rows.contiguous()};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}

// _quantize_tensor for tensors of any shape. Upstream's BFP16 takes only float32 matrices.
inline at::Tensor upstream_quantize(const at::Tensor& x, DQuantType qtype) {
  if (qtype == DQuantType::kFp16) {
    return at::clamp(x, -65504.0, 65504.0).to(at::kHalf).contiguous();
  }
  const at::Tensor row = x.to(at::kFloat).reshape({1, -1});
  return call_upstream("quantization::_FloatToBfloat16Quantized", row).view(x.sizes());
}

// _dequantize_tensor, with quant_loss as for FP16.
inline at::Tensor upstream_dequantize(const at::Tensor& q, DQuantType qtype, std::optional<double> quant_loss) {
  at::Tensor decoded = q.to(at::kFloat);
  if (qtype == DQuantType::kBfp16) {
    decoded = call_upstream("quantization::_Bfloat16QuantizedToFloat", q.reshape({1, -1})).view(q.sizes());
  }
  return (quant_loss ? at::div(decoded, *quant_loss) : decoded).contiguous();
}

// The 16 bits of each element of a float16 tensor, as integers.
inline at::Tensor code_bits(const at::Tensor& q) { return q.contiguous().view(at::kShort).to(at::kInt) & 0xFFFF; }

// The value of BFP16 codes as bfloat16.
inline at::Tensor as_bfloat16(const at::Tensor& q) { return q.contiguous().view(at::kBFloat16); }

// The codes of x equal upstream's bit for bit where x is a number, and are a quiet NaN elsewhere.
inline ::testing::AssertionResult encodes_as_upstream(const at::Tensor& q, const at::Tensor& x, DQuantType qtype) {
  const at::Tensor number = x.isnan().logical_not();
  const at::Tensor expected = upstream_quantize(x, qtype);
  const auto numbers = same_bits(code_bits(q).masked_select(number), code_bits(expected).masked_select(number));
  if (!numbers) {
    return numbers;
  }
  const int64_t quiet_nan = qtype == DQuantType::kFp16 ? 0x7E00 : 0x7FC0;
  const at::Tensor nan_codes = code_bits(q).masked_select(x.isnan());
  return same_bits(nan_codes & quiet_nan, at::full_like(nan_codes, quiet_nan));
}

// Every 16-bit pattern as a tensor of a 16-bit float type.
inline at::Tensor every_pattern(at::ScalarType dtype) {
  return at::arange(-32768, 32768, at::kInt).to(at::kShort).view(dtype);
}

}  // namespace narrowcast::test

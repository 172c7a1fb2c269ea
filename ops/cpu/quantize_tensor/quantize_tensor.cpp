// FP16 and BFP16 on the CPU: passes tensors as pointers, and divides the work among threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include <narrowcast/quantize_tensor.h>
#include "ops/cpu/quantize_tensor/quantize_tensor_kernels.h"
#include "ops/operators/meta.h"
#include "ops/operators/quantize_tensor_meta.h"

namespace narrowcast::cpu {
namespace {

// Elements per thread, enough to start one for: some microseconds of work.
constexpr int64_t kGrain = int64_t{1} << 15;

template <class T>
void encode_in_parallel(EncodeSpan<T> all, DQuantType qtype) {
  const auto encode = qtype == DQuantType::kFp16 ? &encode_fp16<T> : &encode_bfp16<T>;
  at::parallel_for(0, all.n, kGrain, [&](int64_t begin, int64_t end) {
    encode({all.x + begin, end - begin, all.codes + begin});
  });
}

void decode(DecodeSpan span, DQuantType qtype, std::optional<double> quant_loss) {
  if (!quant_loss) {
    return qtype == DQuantType::kFp16 ? decode_fp16(span) : decode_bfp16(span);
  }
  const auto divisor = static_cast<float>(*quant_loss);
  return qtype == DQuantType::kFp16 ? decode_fp16(span, divisor) : decode_bfp16(span, divisor);
}

at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype) {
  at::Tensor q = meta::quantize_tensor(x, qtype);
  const at::Tensor source = x.contiguous();
  auto* codes = static_cast<uint16_t*>(q.mutable_data_ptr());
  meta::visit_float(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const EncodeSpan<T> all{source.const_data_ptr<T>(), x.numel(), codes};
    encode_in_parallel(all, parse_dquant_type(qtype));
  });
  return q;
}

at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, std::optional<double> quant_loss) {
  at::Tensor decoded = meta::dequantize_tensor(q, qtype, quant_loss);
  const at::Tensor source = q.contiguous();
  const auto* codes = static_cast<const uint16_t*>(source.const_data_ptr());
  auto* out = decoded.mutable_data_ptr<float>();
  at::parallel_for(0, q.numel(), kGrain, [&](int64_t begin, int64_t end) {
    decode({codes + begin, end - begin, out + begin}, parse_dquant_type(qtype), quant_loss);
  });
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) {
  m.impl("quantize_tensor", &quantize_tensor);
  m.impl("dequantize_tensor", &dequantize_tensor);
}

}  // namespace narrowcast::cpu

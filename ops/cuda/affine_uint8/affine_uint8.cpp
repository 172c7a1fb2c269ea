// The affine uint8 operators on CUDA, which pass tensors as pointers. Work is enqueued on the current stream of x's
// device. The host does not wait for it, so the values of zero points are not checked here.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>

#include "ops/cuda/affine_uint8/affine_uint8.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/operators/meta.h"

namespace narrowcast::cuda {
namespace {

// Dense scales and zero points, and pointers to them.
class Qparams {
 public:
  Qparams(const at::Tensor& scales, const at::Tensor& zero_points)
      : scales_(scales.contiguous()), zero_points_(zero_points.contiguous()) {}

  int64_t channels() const { return scales_.numel(); }

  QparamsIn pointers() const {
    const bool ints = zero_points_.scalar_type() == at::kInt;
    return {scales_.const_data_ptr<float>(), ints ? zero_points_.const_data_ptr<int32_t>() : nullptr,
            ints ? nullptr : zero_points_.const_data_ptr<float>()};
  }

 private:
  at::Tensor scales_;
  at::Tensor zero_points_;
};

void choose_for_rows(const at::Tensor& dense, int64_t rows, const at::Tensor& scales, const at::Tensor& zero_points) {
  const c10::cuda::CUDAGuard guard(dense.device());
  const FloatRows x = rows_of(dense, rows);
  const at::Tensor workspace =
      at::empty({choose_qparams_workspace(x.rows, x.row_size)}, dense.options().dtype(at::kByte));
  launch_choose_qparams(x, workspace.mutable_data_ptr(),
                        {scales.mutable_data_ptr<float>(), zero_points.mutable_data_ptr<int32_t>()},
                        c10::cuda::getCurrentCUDAStream());
}

// One row per channel of `qparams`.
void quantize_rows(const at::Tensor& x, const Qparams& qparams, const at::Tensor& codes) {
  if (x.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor source = x.contiguous();
  launch_quantize(rows_of(source, qparams.channels()), qparams.pointers(), codes.mutable_data_ptr<uint8_t>(),
                  c10::cuda::getCurrentCUDAStream());
}

void dequantize_rows(const at::Tensor& q, const Qparams& qparams, const at::Tensor& decoded) {
  if (q.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(q.device());
  const at::Tensor source = q.contiguous();
  const CodeRows rows{source.const_data_ptr<uint8_t>(), qparams.channels(), q.numel() / qparams.channels()};
  launch_dequantize(rows, qparams.pointers(), decoded.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
}

std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& x) {
  auto outputs = meta::choose_qparams_per_tensor(x);
  const auto& [scale, zero_point] = outputs;
  if (x.numel() == 0) {
    scale.fill_(1);
    zero_point.zero_();
    return outputs;
  }
  // Elements may be in any order, but each must be there once.
  choose_for_rows(x.is_non_overlapping_and_dense() ? x : x.contiguous(), 1, scale, zero_point);
  return outputs;
}

std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& x) {
  auto outputs = meta::choose_qparams_per_channel(x);
  const auto& [scales, zero_points] = outputs;
  if (x.size(0) > 0) choose_for_rows(x.contiguous(), x.size(0), scales, zero_points);
  return outputs;
}

at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  at::Tensor codes = meta::quantize_per_tensor(x, scale, zero_point);
  quantize_rows(x, {scale, zero_point}, codes);
  return codes;
}

at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points) {
  at::Tensor codes = meta::quantize_per_channel(x, scales, zero_points);
  quantize_rows(x, {scales, zero_points}, codes);
  return codes;
}

at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point) {
  at::Tensor decoded = meta::dequantize_per_tensor(q, scale, zero_point);
  dequantize_rows(q, {scale, zero_point}, decoded);
  return decoded;
}

at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points) {
  at::Tensor decoded = meta::dequantize_per_channel(q, scales, zero_points);
  dequantize_rows(q, {scales, zero_points}, decoded);
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) {
  m.impl("choose_qparams_per_tensor", &choose_qparams_per_tensor);
  m.impl("choose_qparams_per_channel", &choose_qparams_per_channel);
  m.impl("quantize_per_tensor", &quantize_per_tensor);
  m.impl("quantize_per_channel", &quantize_per_channel);
  m.impl("dequantize_per_tensor", &dequantize_per_tensor);
  m.impl("dequantize_per_channel", &dequantize_per_channel);
}

}  // namespace narrowcast::cuda

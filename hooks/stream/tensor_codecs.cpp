#include "hooks/stream/tensor_codecs.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include "ops/affine_uint8.h"

namespace narrowcast::hooks {
namespace {

constexpr int64_t kRow = 512;

std::vector<at::Tensor> encode_per_tensor(const at::Tensor& bucket) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(bucket);
  return {at::cat({scale, zero_point.to(at::kFloat)}), quantize_per_tensor(bucket, scale, zero_point)};
}

at::Tensor decode_per_tensor(const std::vector<at::Tensor>& tensors, int64_t /*numel*/) {
  const at::Tensor& qparams = tensors.at(0);
  return dequantize_per_tensor(tensors.at(1), qparams[0], qparams[1]);
}

// x [numel] -> [rows, kRow]
at::Tensor in_rows(const at::Tensor& x) {
  const int64_t missing = (kRow - x.numel() % kRow) % kRow;
  return (missing == 0 ? x : at::constant_pad_nd(x, {0, missing})).view({-1, kRow});
}

std::vector<at::Tensor> encode_per_channel(const at::Tensor& bucket) {
  const at::Tensor rows = in_rows(bucket);
  const auto [scales, zero_points] = choose_qparams_per_channel(rows);
  const at::Tensor codes = quantize_per_channel(rows, scales, zero_points);
  return {at::stack({scales, zero_points.to(at::kFloat)}), codes.view({-1}).narrow(0, 0, bucket.numel())};
}

at::Tensor decode_per_channel(const std::vector<at::Tensor>& tensors, int64_t numel) {
  const at::Tensor& qparams = tensors.at(0);
  return dequantize_per_channel(in_rows(tensors.at(1)), qparams[0], qparams[1]).view({-1}).narrow(0, 0, numel);
}

}  // namespace

TensorCodec per_tensor_codec() { return {encode_per_tensor, decode_per_tensor}; }

TensorCodec per_channel_codec() { return {encode_per_channel, decode_per_channel}; }

}  // namespace narrowcast::hooks

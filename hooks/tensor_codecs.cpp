#include "hooks/tensor_codecs.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include <narrowcast/affine_uint8.h>

namespace narrowcast::hooks {
namespace {

std::vector<at::Tensor> encode_per_tensor(const at::Tensor& bucket) {
  const auto [scale, zero_point] = choose_qparams_per_tensor(bucket);
  return {at::cat({scale, zero_point.to(at::kFloat)}), quantize_per_tensor(bucket, scale, zero_point)};
}

at::Tensor decode_per_tensor(const std::vector<at::Tensor>& tensors, int64_t /*numel*/) {
  const at::Tensor& qparams = tensors.at(0);
  return dequantize_per_tensor(tensors.at(1), qparams[0], qparams[1]);
}

// x [numel] -> [rows, channel_size], or [1, numel] if that is less.
at::Tensor in_rows(const at::Tensor& x, int64_t channel_size) {
  const int64_t row = std::min(channel_size, x.numel());
  const int64_t missing = (row - x.numel() % row) % row;
  return (missing == 0 ? x : at::constant_pad_nd(x, {0, missing})).view({-1, row});
}

std::vector<at::Tensor> encode_per_channel(const at::Tensor& bucket, int64_t channel_size) {
  const at::Tensor rows = in_rows(bucket, channel_size);
  const auto [scales, zero_points] = choose_qparams_per_channel(rows);
  const at::Tensor codes = quantize_per_channel(rows, scales, zero_points);
  return {at::stack({scales, zero_points.to(at::kFloat)}), codes.view({-1}).narrow(0, 0, bucket.numel())};
}

at::Tensor decode_per_channel(const std::vector<at::Tensor>& tensors, int64_t channel_size) {
  const at::Tensor& qparams = tensors.at(0);
  const at::Tensor& codes = tensors.at(1);
  const at::Tensor rows = dequantize_per_channel(in_rows(codes, channel_size), qparams[0], qparams[1]);
  return rows.view({-1}).narrow(0, 0, codes.numel());
}

}  // namespace

TensorCodec per_tensor_codec() { return {encode_per_tensor, decode_per_tensor}; }

TensorCodec per_channel_codec(int64_t channel_size) {
  return {[=](const at::Tensor& bucket) { return encode_per_channel(bucket, channel_size); },
          [=](const std::vector<at::Tensor>& tensors, int64_t /*numel*/) {
            return decode_per_channel(tensors, channel_size);
          }};
}

}  // namespace narrowcast::hooks

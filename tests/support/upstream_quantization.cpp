#include "tests/support/upstream_quantization.h"

#include <ATen/ATen.h>

#include <limits>
#include <tuple>

namespace narrowcast::hooks::upstream {
namespace {

// UniformQuantizationObserverBase._calculate_qparams for quint8, 0..255, affine; both results are float32.
std::tuple<at::Tensor, at::Tensor> calculate_qparams(const at::Tensor& min_val, const at::Tensor& max_val) {
  const at::Tensor min_val_neg = at::min(min_val, at::zeros_like(min_val));
  const at::Tensor max_val_pos = at::max(max_val, at::zeros_like(max_val));
  at::Tensor scale = (max_val_pos - min_val_neg) / 255.0;
  scale = at::max(scale, at::full({1}, std::numeric_limits<float>::epsilon(), scale.options()));
  at::Tensor zero_point = 0 - at::round(min_val_neg / scale).to(at::kInt);
  return {scale, at::clamp(zero_point, 0, 255).to(at::kFloat)};
}

at::Tensor quantize(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  return at::round(x / scale) + zero_point;
}

at::Tensor to_codes(const at::Tensor& y) { return at::clamp(y, 0, 255).to(at::kByte); }

at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scale, const at::Tensor& zero_point) {
  return scale * (codes.to(at::kFloat) - zero_point);
}

at::Tensor per_tensor_round_trip(const at::Tensor& bucket) {
  const at::Tensor x = bucket.to(at::kFloat);  // As the observer does.
  const auto [scale, zero_point] = calculate_qparams(x.min(), x.max());
  // [0]: upstream indexes the gathered tensor, which gives 0-dim tensors that do not promote x.
  return dequantize(to_codes(quantize(bucket, scale[0], zero_point[0])), scale[0], zero_point[0]);
}

at::Tensor per_channel_round_trip(const at::Tensor& bucket, int64_t bucket_size) {
  const at::Tensor channels =
      at::constant_pad_nd(bucket, {0, bucket_size - bucket.numel() % bucket_size}, 0).view({-1, bucket_size});
  const at::Tensor x = channels.to(at::kFloat);
  const auto [scales, zero_points] = calculate_qparams(std::get<0>(x.min(1)), std::get<0>(x.max(1)));
  at::Tensor y = at::zeros(channels.sizes(), x.options());
  for (int64_t i = 0; i < channels.size(0); ++i) y[i].copy_(quantize(channels[i], scales[i], zero_points[i]));
  const at::Tensor codes = to_codes(y);
  at::Tensor decoded = at::zeros(channels.sizes(), x.options());
  for (int64_t i = 0; i < channels.size(0); ++i) decoded[i].copy_(dequantize(codes[i], scales[i], zero_points[i]));
  return decoded.flatten().narrow(0, 0, bucket.numel());
}

// Returns the sums of the first bucket, of the first two, and so on.
template <class RoundTrip>
std::vector<at::Tensor> means(const std::vector<at::Tensor>& buckets, const RoundTrip& round_trip) {
  at::Tensor aggregated = at::zeros_like(buckets[0], at::kFloat);
  // Upstream's observer cannot reduce an empty bucket.
  if (aggregated.numel() == 0) return std::vector<at::Tensor>(buckets.size(), buckets[0]);
  std::vector<at::Tensor> results;
  for (const at::Tensor& bucket : buckets) {
    aggregated += round_trip(bucket);
    results.push_back((aggregated / static_cast<int64_t>(results.size() + 1)).to(buckets[0].scalar_type()));
  }
  return results;
}

}  // namespace

at::Tensor per_tensor_mean(const std::vector<at::Tensor>& buckets) {
  return means(buckets, per_tensor_round_trip).back();
}

at::Tensor per_channel_mean(const std::vector<at::Tensor>& buckets, int64_t bucket_size) {
  return per_channel_means(buckets, bucket_size).back();
}

std::vector<at::Tensor> per_channel_means(const std::vector<at::Tensor>& buckets, int64_t bucket_size) {
  return means(buckets, [&](const at::Tensor& bucket) { return per_channel_round_trip(bucket, bucket_size); });
}

}  // namespace narrowcast::hooks::upstream

#include "tests/hooks/hook_cases.h"

#include <ATen/ATen.h>

#include <limits>
#include <utility>

#include "tests/hooks/quantized/upstream_quantization.h"

namespace narrowcast::hooks {
namespace {

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 1.0 / 1024;
    case at::kBFloat16:
      return 1.0 / 128;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

at::Tensor mean_in_double(const Gradients& gradients) {
  at::Tensor sum = at::zeros_like(gradients[0], at::kDouble);
  for (const at::Tensor& gradient : gradients) sum += gradient.to(at::kDouble);
  return sum / static_cast<double>(gradients.size());
}

// The order in which Gloo adds the W quotients is its own, so that only a bound on the error is known. Cast, quotient
// and W - 1 additions in a type of machine epsilon e each round by at most e / 2 of a value that is at most the sum
// of |quotient| (twice that for what rounding adds on the way); below the normal range by at most the least subnormal.
at::Tensor rounding_bound(const Gradients& gradients, at::ScalarType dtype) {
  at::Tensor magnitude = at::zeros_like(gradients[0], at::kDouble);
  for (const at::Tensor& gradient : gradients) magnitude += gradient.to(at::kDouble).abs();
  const auto world_size = static_cast<double>(gradients.size());
  const double smallest = dtype == at::kHalf ? 0x1p-24 : 1e-38;
  return magnitude / world_size * epsilon(dtype) * (world_size + 1) + smallest * (world_size + 1);
}

int64_t ring(int64_t payload, int64_t world_size) {
  return (2 * (world_size - 1) * payload + world_size - 1) / world_size;
}

at::ScalarType narrower(at::ScalarType a, at::ScalarType b) { return epsilon(a) > epsilon(b) ? a : b; }

HookCase all_reduce_case() {
  return {
      .name = "allreduce",
      .expected = [](const Gradients& gradients, int64_t) { return mean_in_double(gradients); },
      .tolerance = [](const Gradients& gradients) { return rounding_bound(gradients, gradients[0].scalar_type()); },
      .payload_bytes = [](const at::Tensor& gradient,
                          int64_t world_size) { return ring(gradient.numel() * gradient.element_size(), world_size); }};
}

HookCase compress_case(std::string name, at::ScalarType dtype) {
  return {.name = std::move(name),
          .expected = [](const Gradients& gradients, int64_t) { return mean_in_double(gradients); },
          .tolerance =
              [dtype](const Gradients& gradients) {
                // One more rounding, to the bucket's type, which may be the narrower one.
                return rounding_bound(gradients, dtype) +
                       rounding_bound(gradients, narrower(dtype, gradients[0].scalar_type()));
              },
          .payload_bytes = [](const at::Tensor& gradient,
                              int64_t world_size) { return ring(gradient.numel() * 2, world_size); }};
}

HookCase noop_case() {
  return {.name = "noop",
          .expected = [](const Gradients& gradients, int64_t rank) { return gradients[rank]; },
          .tolerance = nullptr,
          .payload_bytes = [](const at::Tensor&, int64_t) { return 0; },
          .averages = false};
}

HookCase per_tensor_case() {
  return {.name = "quantize_per_tensor",
          .expected = [](const Gradients& gradients, int64_t) { return upstream::per_tensor_mean(gradients); },
          .tolerance = nullptr,
          .payload_bytes =
              [](const at::Tensor& gradient, int64_t world_size) {
                return gradient.numel() == 0 ? 0 : (world_size - 1) * (gradient.numel() + 8);
              }};
}

HookCase per_channel_case() {
  return {.name = "quantize_per_channel",
          .expected = [](const Gradients& gradients, int64_t) { return upstream::per_channel_mean(gradients); },
          .tolerance = nullptr,
          .payload_bytes =
              [](const at::Tensor& gradient, int64_t world_size) {
                return (world_size - 1) * (gradient.numel() + 8 * ((gradient.numel() + 511) / 512));
              }};
}

}  // namespace

std::vector<HookCase> hook_cases() {
  return {all_reduce_case(),
          compress_case("fp16_compress", at::kHalf),
          compress_case("bf16_compress", at::kBFloat16),
          per_tensor_case(),
          per_channel_case(),
          noop_case()};
}

}  // namespace narrowcast::hooks

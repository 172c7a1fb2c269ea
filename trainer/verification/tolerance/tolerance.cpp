#include "trainer/verification/tolerance/tolerance.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <map>

#include "hooks/factory.h"
#include "trainer/verification/tolerance/wire_error.h"

namespace narrowcast::verification {
namespace {

// What a rounding to a binary format can cost: relative to the value, or absolute among subnormals.
struct Rounding {
  double relative;
  double absolute;
};
const Rounding kFloat32 = {std::ldexp(1, -24), std::ldexp(1, -150)};
const Rounding kFloat16 = {std::ldexp(1, -11), std::ldexp(1, -25)};
const Rounding kBFloat16 = {std::ldexp(1, -8), std::ldexp(1, -134)};

constexpr int64_t kRowSize = 512;  // elements that share a scale in quantize_per_channel

// The two float32 means: each divides by W and adds W times, with one rounding each, and one to spare for the cast
// of the result.
at::Tensor mean_error(const at::Tensor& values, int64_t world_size) {
  const auto roundings = 2 * static_cast<double>(world_size + 2);
  return values.abs() * (roundings * kFloat32.relative / static_cast<double>(world_size)) +
         roundings * kFloat32.absolute;
}

// Cast, division by W and W - 1 additions, each rounded to the narrow format. A sum of subnormals is exact.
at::Tensor cast_error(const at::Tensor& values, int64_t world_size, const Rounding& format) {
  const auto ranks = static_cast<double>(world_size);
  const double growth = std::pow(1 + format.relative, ranks + 1) - 1;
  return values.abs() * (growth / ranks) + format.absolute * (1 + 1 / ranks);
}

// Affine 8-bit codes with one scale per row: a value decodes to within half a step of itself, as the range holds it.
// value / scale is rounded to float32 before it is rounded to a code, which moves the tie by at most 255 u steps;
// decoding and averaging round scale * (code - zero point), which is within half a step of the value.
at::Tensor affine_error(const at::Tensor& rows, int64_t world_size) {
  const auto [lowest, highest] = at::aminmax(rows, /*dim=*/1, /*keepdim=*/true);
  const at::Tensor scale = ((highest.clamp_min(0) - lowest.clamp_max(0)) / 255).clamp_min(std::ldexp(1, -23));
  const at::Tensor step = scale * (1 + 4 * kFloat32.relative);  // Its own computation is rounded, too.
  return step * ((0.5 + 512 * kFloat32.relative) / static_cast<double>(world_size)) + mean_error(step, world_size);
}

at::Tensor per_tensor_error(const at::Tensor& bucket, int64_t world_size) {
  return affine_error(bucket.unsqueeze(0), world_size).expand({1, bucket.numel()}).squeeze(0);
}

// Rows of 512 with zeros behind the last element: a range always holds zero, so they change no scale.
at::Tensor per_channel_error(const at::Tensor& bucket, int64_t world_size) {
  const int64_t rows = bucket.numel() / kRowSize + 1;
  at::Tensor padded = at::zeros({rows * kRowSize}, bucket.options());
  padded.narrow(0, 0, bucket.numel()).copy_(bucket);
  const at::Tensor error = affine_error(padded.view({rows, kRowSize}), world_size);
  return error.expand({rows, kRowSize}).reshape({-1}).narrow(0, 0, bucket.numel());
}

using Bound = std::function<at::Tensor(const at::Tensor& bucket, int64_t world_size)>;

const std::map<std::string, Bound>& narrowing_bounds() {
  static const std::map<std::string, Bound> bounds = {
      {"fp16_compress", [](const at::Tensor& b, int64_t world) { return cast_error(b, world, kFloat16); }},
      {"bf16_compress", [](const at::Tensor& b, int64_t world) { return cast_error(b, world, kBFloat16); }},
      {"quantize_per_tensor", per_tensor_error},
      {"quantize_per_channel", per_channel_error},
  };
  return bounds;
}

bool keeps_float32(const std::string& hook) { return hook == "none" || hook == "allreduce" || hook == "noop"; }

}  // namespace

at::Tensor error_bound(const std::string& hook, const at::Tensor& bucket, int64_t world_size,
                       const hooks::WireOptions& wire) {
  const at::Tensor values = bucket.detach().to(at::kDouble);
  if (keeps_float32(hook) || bucket.numel() == 0) {
    return mean_error(values, world_size);
  }
  if (const auto format = hooks::wire_format_of(hook, wire)) {
    return mean_error(values, world_size) + wire_error(*format, wire, values, world_size);
  }
  const auto bound = narrowing_bounds().find(hook);
  TORCH_CHECK_VALUE(bound != narrowing_bounds().end(), "hook: no error bound is known for '", hook, "'");
  return mean_error(values, world_size) + bound->second(values, world_size);
}

std::optional<ReferenceTolerance> reference_tolerance(const std::string& hook) {
  if (hooks::wire_format_of(hook)) {
    return std::nullopt;
  }
  return keeps_float32(hook) ? ReferenceTolerance{} : ReferenceTolerance{.relative = 1e-5, .absolute = 1e-4};
}

}  // namespace narrowcast::verification

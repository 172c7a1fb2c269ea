#include "trainer/train/verification/tolerance.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <narrowcast/hooks.h>
#include "trainer/train/verification/wire_error.h"

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

// Rows of `channel_size` with zeros behind the last element: a range always holds zero, so they change no scale.
at::Tensor per_channel_error(const at::Tensor& bucket, int64_t world_size, int64_t channel_size) {
  const int64_t row = std::min(channel_size, bucket.numel());
  const int64_t rows = (bucket.numel() - 1) / row + 1;
  at::Tensor padded = at::zeros({rows * row}, bucket.options());
  padded.narrow(0, 0, bucket.numel()).copy_(bucket);
  const at::Tensor error = affine_error(padded.view({rows, row}), world_size);
  return error.expand({rows, row}).reshape({-1}).narrow(0, 0, bucket.numel());
}

// Exempt elements are 0 in the message, and come back as they are.
ErrorTerms wire_terms(WireFormat format, const hooks::WireOptions& options, const SentBucket& bucket,
                      int64_t world_size) {
  at::Tensor sent = bucket.gradients.detach().to(at::kDouble).abs();
  if (bucket.residual.defined()) {
    sent = sent + bucket.residual;
  }
  const at::Tensor exempt = bucket.exempt.defined() ? bucket.exempt : at::zeros_like(sent, at::kBool);
  const HopErrors errors = wire_error(format, options, sent.masked_fill(exempt, 0), world_size);
  const at::Tensor first = errors.first.masked_fill(exempt, 0);
  const at::Tensor second = errors.second.masked_fill(exempt, 0);
  const auto ranks = static_cast<double>(world_size);
  return {mean_error(sent + first + second, world_size), first / ranks, second / ranks};
}

using Bound = std::function<at::Tensor(const at::Tensor& bucket, int64_t world_size)>;

const std::map<std::string, Bound>& narrowing_bounds() {
  static const std::map<std::string, Bound> bounds = {
      {"fp16_compress", [](const at::Tensor& b, int64_t world) { return cast_error(b, world, kFloat16); }},
      {"bf16_compress", [](const at::Tensor& b, int64_t world) { return cast_error(b, world, kBFloat16); }},
      {"quantize_per_tensor", per_tensor_error},
  };
  return bounds;
}

bool keeps_float32(const std::string& hook) { return hook == "none" || hook == "allreduce" || hook == "noop"; }

}  // namespace

at::Tensor ErrorTerms::sum() const { return float32 + first_hop + second_hop; }

ErrorTerms error_terms(const DdpOptions& ddp, const SentBucket& bucket, int64_t world_size) {
  const std::string& hook = ddp.hook();
  const at::Tensor values = bucket.gradients.detach().to(at::kDouble);
  const at::Tensor none = at::zeros_like(values);
  if (keeps_float32(hook) || values.numel() == 0) {
    return {mean_error(values, world_size), none, none};
  }
  if (const auto format = hooks::wire_format_of(hook, ddp.wire())) {
    return wire_terms(*format, ddp.wire(), bucket, world_size);
  }
  if (const auto channel_size = hooks::channel_size_of(hook, ddp.channel_size())) {
    return {mean_error(values, world_size), per_channel_error(values, world_size, *channel_size), none};
  }
  const auto bound = narrowing_bounds().find(hook);
  TORCH_CHECK_VALUE(bound != narrowing_bounds().end(), "hook: no error bound is known for '", hook, "'");
  return {mean_error(values, world_size), bound->second(values, world_size), none};
}

std::optional<ReferenceTolerance> reference_tolerance(const std::string& hook) {
  if (hooks::wire_format_of(hook)) {
    return std::nullopt;
  }
  return keeps_float32(hook) ? ReferenceTolerance{} : ReferenceTolerance{.relative = 1e-5, .absolute = 1e-4};
}

}  // namespace narrowcast::verification

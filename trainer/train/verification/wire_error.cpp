#include "trainer/train/verification/wire_error.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/collectives/mean/cost_model.h"

namespace narrowcast::verification {
namespace {

using collectives::Route;

// What rounding to nearest costs: relative to the number, in steps of its block's scale, or absolute.
struct FormatError {
  int64_t block = 1;
  double greatest = 1;  // Of the codes.
  double relative = 0;
  double steps = 0;
  double absolute = 0;
};

FormatError format_error(WireFormat format) {
  switch (format) {
    case WireFormat::kInt8B32:
      return {.block = 32, .greatest = 127, .steps = 0.5};
    case WireFormat::kInt8B128:
      return {.block = 128, .greatest = 127, .steps = 0.5};
    case WireFormat::kInt8B256:
      return {.block = 256, .greatest = 127, .steps = 0.5};
    case WireFormat::kInt6B32:
      return {.block = 32, .greatest = 31, .steps = 0.5};
    case WireFormat::kInt4B32:
      return {.block = 32, .greatest = 7, .steps = 0.5};
    case WireFormat::kFp8E4M3B32:
      return {.block = 32, .greatest = 448, .relative = std::ldexp(1, -4), .steps = std::ldexp(1, -10)};
    case WireFormat::kBf16:
      return {.relative = std::ldexp(1, -8), .absolute = std::ldexp(1, -134)};
    case WireFormat::kFp16:
      return {.relative = std::ldexp(1, -11), .absolute = std::ldexp(1, -25)};
    case WireFormat::kFp32:
      return {};
  }
  return {};
}

// e(x, m) of the header.
at::Tensor hop_error(const FormatError& format, double unit, const at::Tensor& magnitudes, const at::Tensor& largest) {
  const double scale = (1 + std::ldexp(1, -7)) / format.greatest;
  const double flushed = format.steps > 0 ? format.greatest * std::ldexp(1, -100) : 0;
  const double computed = format.steps > 0 ? std::ldexp(1, -22) : 0;
  return magnitudes * (unit * format.relative + computed) + largest * (unit * format.steps * scale) +
         (unit * format.absolute + flushed);
}

// The largest magnitude of each element's block.
at::Tensor largest_of_blocks(const at::Tensor& magnitudes, int64_t block) {
  const int64_t blocks = (magnitudes.numel() + block - 1) / block;
  at::Tensor padded = at::zeros({blocks * block}, magnitudes.options());
  padded.narrow(0, 0, magnitudes.numel()).copy_(magnitudes);
  const at::Tensor largest = padded.view({blocks, block}).amax(/*dim=*/1, /*keepdim=*/true);
  return largest.expand({blocks, block}).reshape({-1}).narrow(0, 0, magnitudes.numel());
}

}  // namespace

HopErrors wire_error(WireFormat wire_format, const hooks::WireOptions& options, const at::Tensor& magnitudes,
                     int64_t world_size) {
  const FormatError format = format_error(wire_format);
  const Route route = collectives::choose_route(magnitudes.numel(), world_size, wire_format);
  const at::Tensor none = at::zeros_like(magnitudes);
  if (route == Route::kNowhere) {
    return {none, none};
  }
  const double unit = options.stochastic_rounding_seed.has_value() ? 2 : 1;
  const at::Tensor largest = largest_of_blocks(magnitudes, format.block);
  const at::Tensor first = hop_error(format, unit, magnitudes, largest);
  if (route == Route::kOneShot) {
    return {first, none};
  }
  const at::Tensor largest_error = hop_error(format, unit, largest, largest);
  return {first, hop_error(format, unit, magnitudes + first, largest + largest_error)};
}

}  // namespace narrowcast::verification

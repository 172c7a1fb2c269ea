#include "hooks/wire_error.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/codec/wire/format.h"
#include "ops/collectives/mean/mean_exchange.h"

namespace narrowcast::hooks {
namespace {

using collectives::Route;

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

FormatError format_error(WireFormat format) {
  return codec::wire::visit(format, [](auto type) -> FormatError {
    using Format = decltype(type);
    if constexpr (Format::kHasBlocks) {
      return {.block = Format::kBlock,
              .greatest = Format::kGreatest,
              .relative = Format::kRelativeHalfStep,
              .steps = Format::kHalfStep};
    } else {
      return {.relative = Format::kRelativeHalfStep, .absolute = Format::kHalfStep};
    }
  });
}

HopErrors wire_error(WireFormat wire_format, const WireOptions& options, const at::Tensor& magnitudes,
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

}  // namespace narrowcast::hooks

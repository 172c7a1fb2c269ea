#include "hooks/row/error_bound.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include <narrowcast/wire_format.h>
#include "hooks/row/levels.h"
#include "ops/codec/affine_uint8.h"
#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_message.h"
#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/array/element_order.h"

namespace narrowcast::hooks {
namespace {

using collectives::Route;

// e(x, m) of error_bound.h.
at::Tensor hop_error(const FormatError& format, double unit, const at::Tensor& magnitudes, const at::Tensor& largest) {
  const double scale = (1 + codec::wire::kScaleStep) / format.greatest;
  const double flushed = format.steps > 0 ? format.greatest * std::ldexp(1, codec::wire::kLeastScaleExponent) : 0;
  const double computed = format.steps > 0 ? std::ldexp(1, -22) : 0;
  return magnitudes * (unit * format.relative + computed) + largest * (unit * format.steps * scale) +
         (unit * format.absolute + flushed);
}

// The largest magnitude of each block, one row per block.
at::Tensor largest_by_block(const at::Tensor& magnitudes, int64_t block) {
  const int64_t blocks = (magnitudes.numel() + block - 1) / block;
  at::Tensor padded = at::zeros({blocks * block}, magnitudes.options());
  padded.narrow(0, 0, magnitudes.numel()).copy_(magnitudes);
  return padded.view({blocks, block}).amax(/*dim=*/1, /*keepdim=*/true);
}

// For each element the largest magnitude of its block.
at::Tensor largest_of_blocks(const at::Tensor& magnitudes, int64_t block) {
  const at::Tensor largest = largest_by_block(magnitudes, block);
  return largest.expand({largest.numel(), block}).reshape({-1}).narrow(0, 0, magnitudes.numel());
}

const double kFloat32Relative = std::ldexp(1, -24);
const double kFloat32Absolute = std::ldexp(1, -150);  // For subnormals.

// The two float32 means: each has a division by W and W additions, with one rounding each. One more rounding is for the
// cast of the result.
at::Tensor mean_error(const at::Tensor& values, int64_t world_size) {
  const auto roundings = 2 * static_cast<double>(world_size + 2);
  return values.abs() * (roundings * kFloat32Relative / static_cast<double>(world_size)) + roundings * kFloat32Absolute;
}

// Cast, division by W and W - 1 additions, each rounded to the narrow format. A sum of subnormals is exact.
at::Tensor cast_error(const at::Tensor& values, int64_t world_size, const FormatError& format) {
  const auto ranks = static_cast<double>(world_size);
  const double growth = std::pow(1 + format.relative, ranks + 1) - 1;
  return values.abs() * (growth / ranks) + format.absolute * (1 + 1 / ranks);
}

// Affine 8-bit codes with one scale per row: a value decodes to within half a step, because the range contains it.
// The quotient value / scale is rounded to float32 before it is rounded to a code, which moves the tie by at most 255 u
// steps. Decoding and averaging round scale * (code - zero point), which is within half a step of the value.
at::Tensor affine_error(const at::Tensor& rows, int64_t world_size) {
  const auto [lowest, highest] = at::aminmax(rows, /*dim=*/1, /*keepdim=*/true);
  const at::Tensor range = highest.clamp_min(0) - lowest.clamp_max(0);
  const at::Tensor scale = (range / codec::kAffineGreatestCode).clamp_min(codec::kAffineEps);
  const at::Tensor step = scale * (1 + 4 * kFloat32Relative);  // The computation of the scale is rounded.
  return step * ((0.5 + 512 * kFloat32Relative) / static_cast<double>(world_size)) + mean_error(step, world_size);
}

// Rows of `row_size`, padded with zeros. Every range contains zero, so the padding changes no scale.
at::Tensor rows_error(const at::Tensor& bucket, int64_t world_size, int64_t row_size) {
  const int64_t row = std::min(row_size, bucket.numel());
  const int64_t rows = (bucket.numel() - 1) / row + 1;
  at::Tensor padded = at::zeros({rows * row}, bucket.options());
  padded.narrow(0, 0, bucket.numel()).copy_(bucket);
  const at::Tensor error = affine_error(padded.view({rows, row}), world_size);
  return error.expand({rows, row}).reshape({-1}).narrow(0, 0, bucket.numel());
}

at::Tensor in_float64(const SentBucket& bucket) { return bucket.gradients.detach().to(at::kDouble); }

}  // namespace

FormatError format_error(WireFormat format) {
  if (codec::wire::is_sparse(format)) {  // An element that is not sent is at most the largest one.
    return {.block = codec::wire::kSparseBlock, .steps = 1};
  }
  return codec::wire::visit_fixed(format, [](auto type) -> FormatError {
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

namespace {

// The route of a segment; if it depends on measurements, the route that rounds twice.
Route most_rounding_route(const SentFormat& sent_format, int64_t numel, const node::NodeLayout& layout) {
  if (layout.nodes() > 2 && !gives_link(sent_format.options) && !codec::wire::is_sparse(sent_format.format)) {
    return Route::kTwoShot;
  }
  return collectives::choose_route(numel, layout.nodes(), sent_format.format,
                                   with_given_link({}, sent_format.options, layout));
}

double unit_of(const SentFormat& sent_format) {
  return sent_format.options.stochastic_rounding_seed.has_value() ? 2 : 1;
}

// The largest step of a message of numbers with at most these magnitudes. The step grows with the largest positive and
// negative numbers of a block. So it is at most the step of a message in which both equal the block's largest
// magnitude. Magnitudes are rounded up to float32.
double greatest_step(const SentFormat& sent_format, const at::Tensor& magnitudes) {
  using codec::wire::kVariableBlock;
  const at::Tensor largest = largest_by_block(magnitudes, kVariableBlock) * (1 + std::ldexp(1, -23));
  at::Tensor numbers = at::zeros({largest.numel(), kVariableBlock}, magnitudes.options());
  numbers.narrow(1, 0, 1).copy_(largest);
  numbers.narrow(1, 1, 1).copy_(-largest);
  const at::Tensor bytes = encode(numbers.reshape({-1}).narrow(0, 0, magnitudes.numel()).to(at::kFloat).cpu(),
                                  sent_format.format, {.seed = sent_format.options.stochastic_rounding_seed});
  return codec::wire::scale_value(codec::wire::step_of_message(bytes.const_data_ptr<uint8_t>()));
}

// e(x) of error_bound.h, for messages that nodes send on a route.
at::Tensor variable_hop_error(const SentFormat& sent_format, Route route, const at::Tensor& magnitudes,
                              const node::NodeLayout& layout) {
  at::Tensor error = magnitudes * std::ldexp(1, -21);
  const collectives::AllReduceOptions mean{
      .rank = 0, .world_size = layout.nodes(), .numel = magnitudes.numel(), .format = sent_format.format};
  for (const collectives::ElementRange& message : collectives::result_ranges(route, mean)) {
    if (message.numel > 0) {
      const double step = greatest_step(sent_format, magnitudes.narrow(0, message.begin, message.numel));
      error.narrow(0, message.begin, message.numel).add_(unit_of(sent_format) * step / 2);
    }
  }
  return error;
}

HopErrors variable_error(const SentFormat& sent_format, const at::Tensor& magnitudes, const node::NodeLayout& layout,
                         const SumOverRanks& sum_over_ranks) {
  const auto ranks = static_cast<double>(layout.world_size());
  const auto mean_over_ranks = [&](const at::Tensor& term) {
    return sum_over_ranks ? sum_over_ranks(term) / ranks : term;
  };
  const Route route = most_rounding_route(sent_format, magnitudes.numel(), layout);
  const at::Tensor none = at::zeros_like(magnitudes);
  if (route == Route::kNowhere) {
    return {none, none};
  }
  const at::Tensor sent =
      layout.has_levels() ? mean_over_ranks(magnitudes) * static_cast<double>(layout.nodes()) : magnitudes;
  at::Tensor first = variable_hop_error(sent_format, route, sent, layout);
  if (route == Route::kOneShot) {
    return {first, none};
  }
  if (!gives_link(sent_format.options)) {
    first = at::maximum(first, variable_hop_error(sent_format, Route::kOneShot, sent, layout));
  }
  const at::Tensor mean = mean_over_ranks(magnitudes + first);
  return {first, variable_hop_error(sent_format, route, mean, layout)};
}

// The errors of a segment that nodes exchange.
HopErrors segment_error(const SentFormat& sent_format, const at::Tensor& magnitudes, const node::NodeLayout& layout,
                        const SumOverRanks& sum_over_ranks) {
  if (codec::wire::is_variable(sent_format.format)) {
    return variable_error(sent_format, magnitudes, layout, sum_over_ranks);
  }
  const FormatError format = format_error(sent_format.format);
  const Route route = most_rounding_route(sent_format, magnitudes.numel(), layout);
  const at::Tensor none = at::zeros_like(magnitudes);
  if (route == Route::kNowhere) {
    return {none, none};
  }
  const double unit = unit_of(sent_format);
  const at::Tensor largest = largest_of_blocks(magnitudes, format.block);
  const at::Tensor first = hop_error(format, unit, magnitudes, largest);
  if (route == Route::kOneShot) {
    return {first, none};
  }
  const at::Tensor largest_error = hop_error(format, unit, largest, largest);
  return {first, hop_error(format, unit, magnitudes + first, largest + largest_error)};
}

}  // namespace

HopErrors wire_error(const SentFormat& sent_format, const at::Tensor& magnitudes, const node::NodeLayout& layout,
                     const SumOverRanks& sum_over_ranks) {
  HopErrors errors{at::zeros_like(magnitudes), at::zeros_like(magnitudes)};
  const auto order = collectives::ElementOrder::of(sent_format.format, magnitudes.numel());
  for (int64_t index = 0; index < layout.segments(); ++index) {
    const collectives::ElementRange segment = collectives::segment_of(layout, index, magnitudes.numel());
    if (segment.numel > 0) {
      const HopErrors sent = segment_error(sent_format, order.take(magnitudes, segment), layout, sum_over_ranks);
      order.add(sent.first, 1, segment, errors.first);
      order.add(sent.second, 1, segment, errors.second);
    }
  }
  return errors;
}

at::Tensor ErrorTerms::sum() const { return float32 + first_hop + second_hop; }

ErrorTerms float32_terms(const SentBucket& bucket, int64_t world_size) {
  const at::Tensor values = in_float64(bucket);
  return {mean_error(values, world_size), at::zeros_like(values), at::zeros_like(values)};
}

ErrorTerms cast_terms(const SentBucket& bucket, int64_t world_size, WireFormat format) {
  ErrorTerms terms = float32_terms(bucket, world_size);
  terms.first_hop = cast_error(in_float64(bucket), world_size, format_error(format));
  return terms;
}

ErrorTerms affine_terms(const SentBucket& bucket, int64_t world_size, int64_t row_size) {
  ErrorTerms terms = float32_terms(bucket, world_size);
  if (bucket.gradients.numel() > 0) {
    terms.first_hop = rows_error(in_float64(bucket), world_size, row_size);
  }
  return terms;
}

// Exempt elements are 0 in the message and are not rounded.
ErrorTerms wire_terms(const SentBucket& bucket, const node::NodeLayout& layout, const SentFormat& sent_format) {
  const int64_t world_size = layout.world_size();
  at::Tensor sent = in_float64(bucket).abs();
  if (sent.numel() == 0) {
    return float32_terms(bucket, world_size);
  }
  if (bucket.residual.defined()) {
    sent = sent + bucket.residual;
  }
  const at::Tensor exempt = bucket.exempt.defined() ? bucket.exempt : at::zeros_like(sent, at::kBool);
  const HopErrors errors = wire_error(sent_format, sent.masked_fill(exempt, 0), layout, bucket.sum_over_ranks);
  const at::Tensor first = errors.first.masked_fill(exempt, 0);
  const at::Tensor second = errors.second.masked_fill(exempt, 0);
  const auto ranks = static_cast<double>(world_size);
  return {mean_error(sent + first + second, world_size), first / ranks, second / ranks};
}

}  // namespace narrowcast::hooks

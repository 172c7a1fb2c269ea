#include "ops/collectives/all_reduce/array/element_order.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <numbers>
#include <numeric>
#include <vector>

#include "ops/codec/wire_format.h"

namespace narrowcast::collectives {
namespace {

using cpu::kWireGrain;

// The first integer from grains / golden ratio on that has no common divisor with `grains`.
int64_t stride_of(int64_t grains) {
  auto stride = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(grains) / std::numbers::phi));
  while (std::gcd(stride, grains) != 1) {
    ++stride;  // At the latest, grains - 1 has none.
  }
  return stride;
}

}  // namespace

ElementOrder ElementOrder::of(WireFormat format, int64_t numel) {
  ElementOrder order;
  if (codec::wire::is_variable(format) && numel >= kWireGrain) {
    order.order_.grains = numel / kWireGrain;
    order.order_.stride = stride_of(order.order_.grains);
  }
  return order;
}

ElementOrder::Parts ElementOrder::parts_of(const ElementRange& places) const {
  const int64_t end = places.begin + places.numel;
  const int64_t dealt_end = std::clamp(order_.grains * kWireGrain, places.begin, end);
  return {{places.begin / kWireGrain, (dealt_end - places.begin) / kWireGrain}, {dealt_end, end - dealt_end}};
}

// The grains of the array that are reordered, one row each.
at::Tensor ElementOrder::grains_of(const at::Tensor& array) const {
  return array.narrow(0, 0, order_.grains * kWireGrain).view({order_.grains, kWireGrain});
}

// The index of the array's grain at each place.
at::Tensor ElementOrder::grain_indices(const ElementRange& grains, at::Device device) const {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return at::arange(grains.begin, grains.begin + grains.numel, options).mul_(order_.stride).remainder_(order_.grains);
}

at::Tensor ElementOrder::take(const at::Tensor& array, const ElementRange& places) const {
  if (is_identity()) {
    return array.narrow(0, places.begin, places.numel);
  }
  const auto [grains, rest] = parts_of(places);
  const at::Tensor dealt = at::index_select(grains_of(array), 0, grain_indices(grains, array.device())).view({-1});
  return rest.numel == 0 ? dealt : at::cat({dealt, array.narrow(0, rest.begin, rest.numel)});
}

void ElementOrder::put(const at::Tensor& numbers, const ElementRange& places, const at::Tensor& array) const {
  const auto [grains, rest] = parts_of(places);
  const int64_t dealt = places.numel - rest.numel;
  array.narrow(0, rest.begin, rest.numel).copy_(numbers.narrow(0, dealt, rest.numel));
  if (dealt > 0) {
    const at::Tensor rows = numbers.narrow(0, 0, dealt).view({-1, kWireGrain}).to(array.scalar_type());
    grains_of(array).index_copy_(0, grain_indices(grains, array.device()), rows);
  }
}

void ElementOrder::add(const at::Tensor& numbers, double weight, const ElementRange& places,
                       const at::Tensor& array) const {
  const auto [grains, rest] = parts_of(places);
  const int64_t dealt = places.numel - rest.numel;
  array.narrow(0, rest.begin, rest.numel).add_(numbers.narrow(0, dealt, rest.numel), weight);
  if (dealt > 0) {
    const at::Tensor rows = numbers.narrow(0, 0, dealt).view({-1, kWireGrain}).to(array.scalar_type());
    grains_of(array).index_add_(0, grain_indices(grains, array.device()), rows, weight);
  }
}

std::vector<ElementRange> ElementOrder::offsets_of(const std::vector<ElementRange>& elements) const {
  if (is_identity()) {
    return elements;
  }
  std::vector<int64_t> place_of_grain(static_cast<size_t>(order_.grains));
  for (int64_t place = 0; place < order_.grains; ++place) {
    place_of_grain[static_cast<size_t>(place * order_.stride % order_.grains)] = place;
  }
  std::vector<ElementRange> places;
  for (const ElementRange& range : elements) {
    const int64_t end = range.begin + range.numel;
    for (int64_t begin = range.begin; begin < end;) {
      const int64_t grain = begin / kWireGrain;
      const int64_t next = std::min(end, grain < order_.grains ? (grain + 1) * kWireGrain : end);
      const int64_t first =
          grain < order_.grains ? place_of_grain[static_cast<size_t>(grain)] * kWireGrain : grain * kWireGrain;
      places.push_back({first + begin % kWireGrain, next - begin});
      begin = next;
    }
  }
  std::ranges::sort(places, {}, &ElementRange::begin);
  std::vector<ElementRange> joined;
  for (const ElementRange& range : places) {
    if (!joined.empty() && joined.back().begin + joined.back().numel == range.begin) {
      joined.back().numel += range.numel;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace narrowcast::collectives

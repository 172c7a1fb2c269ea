#include "ops/collectives/mean/element_order.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <numbers>
#include <numeric>

#include "ops/codec/wire_format.h"

namespace narrowcast::collectives {
namespace {

using cpu::kWireGrain;

// Next to grains / golden ratio, and without a common divisor with `grains`.
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
    order.grains_ = numel / kWireGrain;
    order.stride_ = stride_of(order.grains_);
  }
  return order;
}

at::Tensor ElementOrder::elements(const Segment& places, at::Device device) const {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const int64_t end = places.begin + places.numel;
  const int64_t dealt_end = std::clamp(grains_ * kWireGrain, places.begin, end);
  const at::Tensor dealt = at::arange(places.begin, dealt_end, options);
  const at::Tensor grain = dealt.div(kWireGrain, "floor").mul_(stride_).remainder_(std::max<int64_t>(1, grains_));
  return at::cat({grain.mul_(kWireGrain).add_(dealt.remainder(kWireGrain)), at::arange(dealt_end, end, options)});
}

at::Tensor ElementOrder::take(const at::Tensor& array, const Segment& places) const {
  return is_arrays_own() ? array.narrow(0, places.begin, places.numel)
                         : at::index_select(array, 0, elements(places, array.device()));
}

void ElementOrder::add(const at::Tensor& numbers, double weight, const Segment& places, const at::Tensor& array) const {
  if (is_arrays_own()) {
    array.narrow(0, places.begin, places.numel).add_(numbers, weight);
  } else {
    array.index_add_(0, elements(places, array.device()), numbers, weight);
  }
}

}  // namespace narrowcast::collectives

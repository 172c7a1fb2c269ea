#include <narrowcast/affine_uint8.h>

#include "ops/operators/dispatch.h"

namespace narrowcast {
namespace {

using Qparams = std::tuple<at::Tensor, at::Tensor>;
using Choose = Qparams(const at::Tensor&);
using Convert = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);

}  // namespace

Qparams choose_qparams_per_tensor(const at::Tensor& x) {
  static const auto op = find_operator<Choose>("narrowcast::choose_qparams_per_tensor");
  check_defined(x, "x");
  return op.call(x);
}

Qparams choose_qparams_per_channel(const at::Tensor& x) {
  static const auto op = find_operator<Choose>("narrowcast::choose_qparams_per_channel");
  check_defined(x, "x");
  return op.call(x);
}

at::Tensor quantize_per_tensor(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = find_operator<Convert>("narrowcast::quantize_per_tensor");
  check_defined(x, "x");
  return op.call(x, scale, zero_point);
}

at::Tensor quantize_per_channel(const at::Tensor& x, const at::Tensor& scales, const at::Tensor& zero_points) {
  static const auto op = find_operator<Convert>("narrowcast::quantize_per_channel");
  check_defined(x, "x");
  return op.call(x, scales, zero_points);
}

at::Tensor dequantize_per_tensor(const at::Tensor& q, const at::Tensor& scale, const at::Tensor& zero_point) {
  static const auto op = find_operator<Convert>("narrowcast::dequantize_per_tensor");
  check_defined(q, "q");
  return op.call(q, scale, zero_point);
}

at::Tensor dequantize_per_channel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points) {
  static const auto op = find_operator<Convert>("narrowcast::dequantize_per_channel");
  check_defined(q, "q");
  return op.call(q, scales, zero_points);
}

}  // namespace narrowcast

// Layers for tests of weight_only_int8_linear, and bounds of its error.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include <narrowcast/weight_only_int8.h>
#include "tests/ops/codec/instruction_sets.h"

namespace narrowcast::test {

struct Layer {
  at::Tensor weight;  // int8 [out, in]
  at::Tensor scales;  // float32 [out]
  std::optional<at::Tensor> bias = std::nullopt;
};

inline Layer random_layer(int64_t outputs, int64_t inputs) {
  return {at::randint(-128, 128, {outputs, inputs}, at::kChar), at::rand({outputs}) * 0.02 + 1e-3,
          at::randn({outputs})};
}

inline constexpr at::ScalarType kLinearDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

inline at::Tensor run_linear(const at::Tensor& x, const Layer& layer) {
  return weight_only_int8_linear(x, layer.weight, layer.scales, layer.bias);
}

// The reference's expression, plus the bias that the reference drops.
inline at::Tensor run_reference(const at::Tensor& x, const Layer& layer) {
  const at::Tensor y = at::linear(x, layer.weight.to(x.scalar_type())) * layer.scales.to(x.scalar_type());
  return layer.bias ? y + layer.bias->to(x.scalar_type()) : y;
}

// linear(x, weight) * scales + bias in float64.
inline at::Tensor exact_linear(const at::Tensor& x, const Layer& layer) {
  const at::Tensor product = x.to(at::kDouble).matmul(layer.weight.to(at::kDouble).t());
  const at::Tensor scaled = product * layer.scales.to(at::kDouble);
  return layer.bias ? scaled + layer.bias->to(at::kDouble) : scaled;
}

// Half the distance between neighbours around 1.
inline double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kFloat ? 0x1p-24 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
}

// The largest distance from exact_linear, derived from the arithmetic:
// - A float32 sum of n terms in any order, scaled and shifted: (n + 3) * 2^-24 of the sum of the terms' magnitudes.
// - Fixed point: half a unit per input, less than largest / 8355711 for three digits, / 32639 for the two of bfloat16.
// - A bfloat16 product may be rounded before it is scaled.
// - The result is rounded to the dtype, in float16 to a multiple of 2^-24 near 0.
inline at::Tensor linear_bound(const at::Tensor& x, const Layer& layer) {
  const at::Tensor x64 = x.to(at::kDouble).abs();
  const at::Tensor w64 = layer.weight.to(at::kDouble).abs() * layer.scales.to(at::kDouble).abs().unsqueeze(1);
  const at::Tensor terms = x64.matmul(w64.t());
  const at::Tensor bias = layer.bias ? layer.bias->to(at::kDouble).abs() : at::zeros({1}, x64.options());
  const double inputs = static_cast<double>(x.size(-1));
  const double half_unit = 1.0 / (x.scalar_type() == at::kBFloat16 ? 32639 : 8355711);
  const at::Tensor largest = x64.numel() == 0 ? at::zeros({1}, x64.options()) : std::get<0>(x64.max(-1, true));
  const at::Tensor sum_error = (terms + bias) * ((inputs + 3) * 0x1p-24) + largest * w64.sum(1) * half_unit;
  const at::Tensor product_rounding = terms * (x.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0);
  const at::Tensor before = sum_error + product_rounding;
  return before + (exact_linear(x, layer).abs() + before) * unit_roundoff(x.scalar_type()) + 0x1p-25;
}

inline testing::AssertionResult within_bound(const at::Tensor& actual, const at::Tensor& x, const Layer& layer) {
  const at::Tensor excess = (actual.to(at::kDouble) - exact_linear(x, layer)).abs() - linear_bound(x, layer);
  if (actual.scalar_type() != x.scalar_type()) return testing::AssertionFailure() << "dtype " << actual.scalar_type();
  if (actual.numel() == 0 || excess.max().item<double>() <= 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << excess.gt(0).sum().item<int64_t>() << " of " << actual.numel()
                                     << " are too far, or NaN; the worst by " << excess.max().item<double>();
}

// Tests a layer on batches of these numbers of rows, with and without its bias.
inline void expect_exact_within_bound(const Layer& layer, const std::vector<int64_t>& batches) {
  const Layer no_bias{layer.weight, layer.scales};
  const int64_t inputs = layer.weight.size(1);
  for (const int64_t rows : batches) {
    for (const at::ScalarType dtype : kLinearDtypes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << inputs << " -> " << layer.weight.size(0) << " " << dtype);
      const at::Tensor x = at::randn({rows, inputs}).to(dtype).to(layer.weight.device());
      EXPECT_TRUE(within_bound(run_linear(x, layer), x, layer));
      EXPECT_TRUE(within_bound(run_linear(x, no_bias), x, no_bias));
    }
  }
}

// Inf and NaN of an input must reach all the outputs of their row that depend on it, and no other row.
inline void expect_passes_inf_and_nan_on(const Layer& layer) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  layer.weight.select(1, 3).slice(0, 0, 6).zero_();
  for (const at::ScalarType dtype : kLinearDtypes) {
    for (const int64_t rows : {4, 9, 70}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << dtype);
      at::Tensor x = at::randn({rows, layer.weight.size(1)}).to(dtype).to(layer.weight.device());
      x[0][3] = kInf;
      x[1][3] = -kInf;
      x[2][5] = std::numeric_limits<double>::quiet_NaN();
      const at::Tensor y = run_linear(x, layer);
      const at::Tensor expected = exact_linear(x, layer);
      EXPECT_TRUE(y.isnan().equal(expected.isnan()));
      EXPECT_TRUE(y.eq(kInf).equal(expected.eq(kInf)));
      EXPECT_TRUE(y.eq(-kInf).equal(expected.eq(-kInf)));
      EXPECT_TRUE(within_bound(y.slice(0, 3), x.slice(0, 3), layer));
    }
  }
}

}  // namespace narrowcast::test

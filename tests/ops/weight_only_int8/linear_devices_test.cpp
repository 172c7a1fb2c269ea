// weight_only_int8_linear on every device: values, layouts, dtypes, gradients.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include <narrowcast/weight_only_int8.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/weight_only_int8/linear_cases.h"
#include "tests/support/devices.h"

namespace narrowcast {
namespace {

using test::kLinearDtypes;
using test::Layer;
using test::run_linear;
using test::run_reference;
using test::same_bits;
using test::within_bound;

// Enables LibTorch's autocast to bfloat16 while it lives.
class UseAutocast {
 public:
  explicit UseAutocast(c10::DeviceType device) : device_(device) {
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
  }
  ~UseAutocast() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }
  UseAutocast(const UseAutocast&) = delete;
  UseAutocast& operator=(const UseAutocast&) = delete;

 private:
  c10::DeviceType device_;
};

class WeightOnlyInt8LinearOnDevice : public test::DeviceTest {
 protected:
  WeightOnlyInt8LinearOnDevice() { at::manual_seed(7); }

  Layer layer_on_device(int64_t outputs, int64_t inputs) const {
    const Layer layer = test::random_layer(outputs, inputs);
    return {layer.weight.to(device()), layer.scales.to(device()), layer.bias->to(device())};
  }

 private:
  test::UseThreads one_{1};
};

INSTANTIATE_TEST_SUITE_P(Devices, WeightOnlyInt8LinearOnDevice, test::kDevices, test::name_of_case);

// Few and many rows, numbers of inputs with and without full wide loads, and more inputs than a warp has in flight.
TEST_P(WeightOnlyInt8LinearOnDevice, IsExactWithinItsBound) {
  struct Shape {
    int64_t inputs, outputs;
  };
  for (const auto& [inputs, outputs] :
       std::vector<Shape>{{1, 1}, {7, 5}, {64, 16}, {65, 17}, {528, 35}, {4096, 9}, {4624, 3}}) {
    test::expect_exact_within_bound(layer_on_device(outputs, inputs), {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 70});
  }
}

TEST_P(WeightOnlyInt8LinearOnDevice, ReadsInputsAndWeightsThatBeginAnywhere) {
  const at::Tensor weights = at::randint(-128, 128, {20 * 48 + 5}, at::kChar).to(device());
  const Layer layer{weights.slice(0, 5).view({20, 48}), at::rand({20}).to(device())};
  const at::Tensor inputs = at::randn({30 * 48 + 1}).to(at::kBFloat16).to(device());
  for (const int64_t rows : {1, 3, 30}) {
    const at::Tensor x = inputs.slice(0, 1, 1 + rows * 48).view({rows, 48});
    EXPECT_TRUE(within_bound(run_linear(x, layer), x, layer));
  }
}

TEST_P(WeightOnlyInt8LinearOnDevice, PassesInfAndNanOn) { test::expect_passes_inf_and_nan_on(layer_on_device(19, 80)); }

TEST_P(WeightOnlyInt8LinearOnDevice, EqualsTheReferenceExpressionWithinBothBounds) {
  const Layer layer = layer_on_device(48, 512);
  for (const at::ScalarType dtype : kLinearDtypes) {
    for (const int64_t rows : {1, 16, 64, 65}) {
      const at::Tensor x = at::randn({rows, 512}).to(dtype).to(device());
      // The reference sums in float32 and rounds the product, the scale, the scaled product, the bias and the sum.
      const at::Tensor terms = x.to(at::kDouble).abs().matmul(layer.weight.to(at::kDouble).abs().t()) * layer.scales;
      const at::Tensor of_reference =
          (terms + layer.bias->abs()) * (5 * test::unit_roundoff(dtype) + (512 + 3) * 0x1p-24);
      const at::Tensor bound = test::linear_bound(x, layer) + of_reference;
      const at::Tensor difference =
          (run_linear(x, layer).to(at::kDouble) - run_reference(x, layer).to(at::kDouble)).abs();
      EXPECT_TRUE(difference.le(bound).all().item<bool>()) << dtype << " " << rows;
    }
  }
}

// The bits must equal PyTorch's on the device.
TEST_P(WeightOnlyInt8LinearOnDevice, IsTheReferenceExpressionInFloat64) {
  for (const at::ScalarType scales_dtype : {at::kDouble, at::kFloat}) {
    Layer layer = layer_on_device(48, 513);
    layer.scales = layer.scales.to(scales_dtype) / 3;
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{513}, {1, 513}, {4, 513}, {70, 513}, {2, 5, 513}}) {
      const at::Tensor x = at::randn(sizes, at::kDouble).to(device());
      EXPECT_TRUE(same_bits(run_linear(x, layer), run_reference(x, layer)));
      EXPECT_TRUE(
          same_bits(run_linear(x, {layer.weight, layer.scales}), run_reference(x, {layer.weight, layer.scales})));
    }
  }
}

TEST_P(WeightOnlyInt8LinearOnDevice, TakesAnyLeadingShape) {
  const Layer layer = layer_on_device(6, 10);
  for (const std::vector<int64_t>& leading :
       std::vector<std::vector<int64_t>>{{}, {1}, {2, 3}, {2, 1, 4}, {0}, {3, 0}}) {
    std::vector<int64_t> sizes = leading;
    sizes.push_back(10);
    const at::Tensor x = at::randn(sizes).to(device());
    sizes.back() = 6;
    const at::Tensor y = run_linear(x, layer);
    EXPECT_EQ(y.sizes(), at::IntArrayRef(sizes));
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_TRUE(within_bound(y, x, layer));
  }
}

TEST_P(WeightOnlyInt8LinearOnDevice, HandlesLayersWithoutInputsOrOutputs) {
  const Layer no_inputs = layer_on_device(3, 0);
  const auto empty = [this](at::IntArrayRef sizes) { return at::empty(sizes).to(device()); };
  EXPECT_TRUE(same_bits(run_linear(empty({70, 0}), no_inputs), no_inputs.bias->expand({70, 3})));
  EXPECT_TRUE(
      same_bits(run_linear(empty({2, 0}), {no_inputs.weight, no_inputs.scales}), at::zeros({2, 3}).to(device())));
  EXPECT_EQ(run_linear(empty({7, 4}), layer_on_device(0, 4)).sizes(), at::IntArrayRef({7, 0}));
}

TEST_P(WeightOnlyInt8LinearOnDevice, ReadsAnyLayout) {
  const at::Tensor base = at::randn({40, 30, 2}).to(device());
  const Layer layer{at::randint(-128, 128, {30, 24}, at::kChar).to(device()).t(),
                    at::rand({48}).to(device()).slice(0, 0, 48, 2), at::randn({24, 2}).to(device()).select(1, 1)};
  const Layer plain{layer.weight.contiguous(), layer.scales.contiguous(), layer.bias->contiguous()};
  for (const at::Tensor& x : {base.select(2, 1), base.select(2, 0).slice(0, 0, 40, 3), base.select(2, 0).t().t(),
                              base.permute({2, 0, 1}), base.select(2, 0)[3].expand({6, 30})}) {
    EXPECT_TRUE(same_bits(run_linear(x, layer), run_linear(x.contiguous(), plain)));
  }
}

TEST_P(WeightOnlyInt8LinearOnDevice, TakesScalesAndBiasOfAnyFloatDtype) {
  const Layer layer = layer_on_device(9, 33);
  const at::Tensor x = at::randn({6, 33}).to(at::kBFloat16).to(device());
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const Layer given{layer.weight, layer.scales.to(dtype), layer.bias->to(dtype)};
    const Layer wide{layer.weight, given.scales.to(at::kFloat), given.bias->to(at::kFloat)};
    EXPECT_TRUE(same_bits(run_linear(x, given), run_linear(x, wide)));
    EXPECT_EQ(run_linear(x, given).scalar_type(), at::kBFloat16);
  }
}

// Like at::linear.
TEST_P(WeightOnlyInt8LinearOnDevice, ComputesInTheDtypeOfAutocast) {
  const Layer layer = layer_on_device(9, 33);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {3, 70}) {
      const at::Tensor x = at::randn({rows, 33}).to(dtype).to(device());
      const at::Tensor expected = run_linear(dtype == at::kDouble ? x : x.to(at::kBFloat16), layer);
      const UseAutocast autocast(GetParam());
      EXPECT_TRUE(same_bits(run_linear(x, layer), expected)) << rows << " rows of " << dtype;
    }
  }
}

// Small integers and powers of two: every sum and product is exact.
TEST_P(WeightOnlyInt8LinearOnDevice, GivesTheReferencesGradients) {
  const auto whole_numbers = [this](at::IntArrayRef sizes) {
    return at::randint(-4, 5, sizes, at::kFloat).to(device());
  };
  for (const int64_t rows : {1, 7, 70}) {
    const Layer layer{at::randint(-8, 9, {4, 6}, at::kChar).to(device()),
                      at::pow(2.0, at::randint(-3, 3, {4}, at::kFloat)).to(device()),
                      whole_numbers({4}).requires_grad_()};
    const at::Tensor x = whole_numbers({rows, 6}).requires_grad_();
    const at::Tensor gradient = whole_numbers({rows, 4});
    const auto expected = torch::autograd::grad({run_reference(x, layer)}, {x, *layer.bias}, {gradient});
    const auto gradients = torch::autograd::grad({run_linear(x, layer)}, {x, *layer.bias}, {gradient});
    EXPECT_TRUE(same_bits(gradients[0], expected[0]));
    EXPECT_TRUE(same_bits(gradients[1], expected[1]));
  }
}

}  // namespace
}  // namespace narrowcast

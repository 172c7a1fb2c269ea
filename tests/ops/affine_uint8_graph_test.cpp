// The affine uint8 operators under autograd and in TorchScript.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <narrowcast/affine_uint8.h>
#include "tests/ops/affine_uint8_reference.h"
#include "tests/ops/script.h"

namespace narrowcast {
namespace {

using test::same_bits;

at::Tensor needing_gradient() { return at::randn({3, 5}).requires_grad_(); }

void expect_backward_names(const at::Tensor& output, const std::string& name) {
  ASSERT_TRUE(output.requires_grad());
  try {
    output.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("derivative for narrowcast::" + name + " is not implemented"));
  }
}

TEST(AffineUint8Autograd, BackwardThroughTheScaleThrows) {
  const at::Tensor x = needing_gradient();
  expect_backward_names(std::get<0>(choose_qparams_per_tensor(x)), "choose_qparams_per_tensor");
  expect_backward_names(std::get<0>(choose_qparams_per_channel(x)), "choose_qparams_per_channel");
}

TEST(AffineUint8Autograd, BackwardThroughDecodedValuesThrows) {
  const at::Tensor codes = at::zeros({3, 5}, at::kByte);
  const at::Tensor scale = at::ones({1}).requires_grad_();
  const at::Tensor scales = at::ones({3}).requires_grad_();
  expect_backward_names(dequantize_per_tensor(codes, scale, at::zeros({1})), "dequantize_per_tensor");
  expect_backward_names(dequantize_per_channel(codes, scales, at::zeros({3})), "dequantize_per_channel");
}

// A loss that reaches x both through the round trip and directly must not get half a gradient.
TEST(AffineUint8Autograd, RoundTripIsNoSilentConstant) {
  const at::Tensor x = needing_gradient();
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  EXPECT_FALSE(codes.requires_grad());
  const at::Tensor loss = (x + dequantize_per_tensor(codes, scale, zero_point)).sum();
  EXPECT_ANY_THROW(loss.backward());
}

TEST(AffineUint8Autograd, WorksWithoutGradAndOnDetachedTensors) {
  const at::Tensor x = needing_gradient();
  const auto [expected, expected_zero_point] = choose_qparams_per_tensor(x.detach());
  EXPECT_FALSE(expected.requires_grad());
  const at::NoGradGuard no_grad;
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  EXPECT_FALSE(scale.requires_grad());
  EXPECT_TRUE(same_bits(scale, expected));
  EXPECT_TRUE(same_bits(quantize_per_tensor(x, scale, zero_point),
                        quantize_per_tensor(x.detach(), expected, expected_zero_point)));
}

constexpr const char* kScript = R"(
def round_trip(self, x):
    scale, zero_point = narrowcast.choose_qparams_per_tensor(x)
    codes = narrowcast.quantize_per_tensor(x, scale, zero_point)
    return narrowcast.dequantize_per_tensor(codes, scale, zero_point)
def round_trip_per_channel(self, x):
    scales, zero_points = narrowcast.choose_qparams_per_channel(x)
    codes = narrowcast.quantize_per_channel(x, scales, zero_points)
    return narrowcast.dequantize_per_channel(codes, scales, zero_points)
)";

void expect_round_trips(torch::jit::Module module) {
  const at::Tensor x = at::randn({4, 300});
  const auto [scale, zero_point] = choose_qparams_per_tensor(x);
  const at::Tensor codes = quantize_per_tensor(x, scale, zero_point);
  const auto [scales, zero_points] = choose_qparams_per_channel(x);
  const at::Tensor channel_codes = quantize_per_channel(x, scales, zero_points);
  for (int run = 0; run < test::kRunsUntilSettled; ++run) {
    EXPECT_TRUE(
        same_bits(module.run_method("round_trip", x).toTensor(), dequantize_per_tensor(codes, scale, zero_point)));
    EXPECT_TRUE(same_bits(module.run_method("round_trip_per_channel", x).toTensor(),
                          dequantize_per_channel(channel_codes, scales, zero_points)));
  }
}

TEST(AffineUint8Script, RunsBeforeAndAfterSaving) {
  const torch::jit::Module module = test::compile(kScript);
  expect_round_trips(module);
  expect_round_trips(test::save_and_load(module));
}

}  // namespace
}  // namespace narrowcast

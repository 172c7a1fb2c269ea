#include <narrowcast/linear.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/weight_only_int8.h>

namespace narrowcast::models {
namespace {

TEST(Linear, IsLibTorchsLinearUntilItIsQuantized) {
  Linear linear(6, 4);
  const at::Tensor x = at::randn({3, 6});
  EXPECT_TRUE(linear(x).equal(at::linear(x, linear->weight, linear->bias)));
  ASSERT_EQ(linear->named_parameters().size(), 2);
  EXPECT_EQ(linear->named_parameters()[0].key(), "weight");
  EXPECT_EQ(linear->named_parameters()[1].key(), "bias");
  EXPECT_EQ(linear->named_buffers().size(), 0);
  EXPECT_NE(linear->as<torch::nn::Linear>(), nullptr);
}

TEST(Linear, QuantizedItMultipliesByInt8) {
  Linear linear(6, 4);
  const auto [codes, scales, unused] = dynamically_quantize_per_channel(linear->weight.detach(), -128, 127, at::kChar);
  linear->quantize_weight();
  EXPECT_TRUE(linear->weight.equal(codes));
  EXPECT_TRUE(linear->scales.equal(scales));
  const at::Tensor x = at::randn({3, 6});
  EXPECT_TRUE(linear(x).equal(weight_only_int8_linear(x, codes, scales, linear->bias)));
  EXPECT_EQ(linear->named_parameters().keys(), std::vector<std::string>{"bias"});
  EXPECT_EQ(linear->named_buffers().keys(), (std::vector<std::string>{"weight", "scales"}));
  linear->quantize_weight();
  EXPECT_TRUE(linear->weight.equal(codes));
}

TEST(Linear, WorksWithoutABias) {
  Linear linear(torch::nn::LinearOptions(6, 4).bias(false));
  linear->quantize_weight();
  const at::Tensor x = at::randn({6});
  EXPECT_TRUE(linear(x).equal(weight_only_int8_linear(x, linear->weight, linear->scales)));
}

TEST(Linear, ClonesBothStates) {
  Linear linear(6, 4);
  const at::Tensor x = at::randn({2, 6});
  for (int state = 0; state < 2; ++state) {
    const auto copy = std::dynamic_pointer_cast<LinearImpl>(linear->clone());
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy->is_quantized(), linear->is_quantized());
    EXPECT_TRUE(copy->forward(x).equal(linear(x)));
    EXPECT_NE(copy->weight.data_ptr(), linear->weight.data_ptr());
    EXPECT_EQ(copy->parameters().size(), linear->parameters().size());
    EXPECT_EQ(copy->bias.requires_grad(), true);
    linear->quantize_weight();
  }
}

}  // namespace
}  // namespace narrowcast::models

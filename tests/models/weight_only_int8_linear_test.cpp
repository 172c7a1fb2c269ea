#include "models/weight_only_int8_linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>

#include <narrowcast/weight_only_int8.h>

namespace narrowcast::models {
namespace {

TEST(WeightOnlyInt8Linear, StartsEmptyWithTheStateDictsNames) {
  WeightOnlyInt8Linear layer(
      WeightOnlyInt8LinearOptions{.in_features = 3, .out_features = 2, .scales_dtype = at::kBFloat16});
  EXPECT_EQ(layer->named_buffers().keys(), (std::vector<std::string>{"weight", "scales"}));
  EXPECT_EQ(layer->named_parameters().keys(), std::vector<std::string>{"bias"});
  EXPECT_EQ(layer->weight.scalar_type(), at::kChar);
  EXPECT_EQ(layer->scales.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(layer(at::ones({5, 3})).equal(at::zeros({5, 2})));
}

TEST(WeightOnlyInt8Linear, TakesOverALinear) {
  for (const bool bias : {true, false}) {
    torch::nn::Linear linear(torch::nn::LinearOptions(6, 4).bias(bias));
    linear->eval();
    const auto layer = WeightOnlyInt8LinearImpl::from(*linear);
    const auto [codes, scales, unused] =
        dynamically_quantize_per_channel(linear->weight.detach(), -128, 127, at::kChar);
    EXPECT_TRUE(layer->named_buffers()["weight"].equal(codes));
    EXPECT_TRUE(layer->named_buffers()["scales"].equal(scales));
    EXPECT_EQ(layer->named_parameters(/*recurse=*/false).contains("bias"), bias);
    EXPECT_FALSE(layer->is_training());
    const at::Tensor x = at::randn({3, 6});
    EXPECT_TRUE(layer->forward(x).equal(
        weight_only_int8_linear(x, codes, scales, bias ? std::optional(linear->bias) : std::nullopt)));
  }
}

TEST(WeightOnlyInt8Linear, ClonesAndPrints) {
  const auto layer = WeightOnlyInt8LinearImpl::from(*torch::nn::Linear(6, 4));
  const auto copy = std::dynamic_pointer_cast<WeightOnlyInt8LinearImpl>(layer->clone());
  const at::Tensor x = at::randn({3, 6});
  EXPECT_TRUE(copy->forward(x).equal(layer->forward(x)));
  EXPECT_NE(copy->weight.data_ptr(), layer->weight.data_ptr());
  std::ostringstream text;
  text << WeightOnlyInt8Linear(layer);
  EXPECT_EQ(text.str(), "narrowcast::models::WeightOnlyInt8Linear(in_features=6, out_features=4, bias=true)");
}

TEST(WeightOnlyInt8Linear, RefusesWhatIsNoLayer) {
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.in_features = -1}), c10::ValueError);
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.out_features = -1}), c10::ValueError);
  EXPECT_THROW(WeightOnlyInt8Linear(WeightOnlyInt8LinearOptions{.scales_dtype = at::kInt}), c10::TypeError);
}

}  // namespace
}  // namespace narrowcast::models

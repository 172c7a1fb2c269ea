#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/adamw.h>

#include <string>

#include <narrowcast/elastic_group.h>
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using testing::error_message;

TEST(ElasticState, EachPartHasItsName) {
  ElasticState state;
  torch::nn::BatchNorm1d net(3);
  torch::optim::AdamW optimizer(net->parameters());
  state.add("net", *net);
  state.add("optimizer", optimizer);
  state.add("steps", at::zeros({}, at::kLong));
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("net", *net); }),
            "state: there is already a part 'net.weight'");
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("optimizer", optimizer); }),
            "state: there is already a part 'optimizer'");
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("steps", at::zeros({1})); }),
            "state: there is already a part 'steps'");
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("", at::zeros({1})); }),
            "state: the name '' must not be empty, and must be UTF-8");
  EXPECT_THROW(state.add("\xff", at::zeros({1})), c10::ValueError);
}

TEST(ElasticState, RefusesWhatCannotBeSent) {
  ElasticState state;
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("x", at::Tensor()); }),
            "state: 'x' is not a defined tensor");
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("x", at::zeros({2}, at::kComplexDouble)); }),
            "state: 'x' is ComplexDouble of layout Strided, which cannot be sent");
  EXPECT_THROW(state.add("x", at::zeros({2, 2}).to_sparse()), c10::ValueError);
  EXPECT_EQ(error_message<c10::ValueError>([&] { state.add("x", nullptr, [](const ElasticState::Tensors&) {}); }),
            "state: 'x' needs both functions, save and load");
}

}  // namespace
}  // namespace narrowcast

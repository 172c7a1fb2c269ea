#include "trainer/ddp/outer/outer_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class OuterArguments : public ::testing::TestWithParam<int64_t> {};

TEST_P(OuterArguments, OptionsThatAreWrongOnOneRankAreRefusedOnAll) {
  run_ranks(GetParam(), [&](int64_t rank, const auto& group) {
    const SmallTraining training(rank);
    const auto agree = [&](const std::function<OuterOptions()>& read_on_rank_1) {
      agree_on_outer_options(*training.inner, group, [&] { return rank == 1 ? read_on_rank_1() : outer_options(4); });
    };
    EXPECT_EQ(error_message<c10::ValueError>([&] { agree([] { return outer_options(0); }); }),
              "OuterOptimizer on rank 1: sync_every: must be at least 1, but is 0");
    EXPECT_EQ(error_message<c10::ValueError>([&] { agree([] { return outer_options(104).fragments(52); }); }),
              "OuterOptimizer on rank 1: fragments: must be at most the number of elements (51), but is 52");
    const auto read_a_float = [] {
      TORCH_CHECK_TYPE(false, "outer_mix: must be float");
      return OuterOptions();
    };
    EXPECT_EQ(error_message<c10::TypeError>([&] { agree(read_a_float); }),
              "OuterOptimizer on rank 1: outer_mix: must be float");
    EXPECT_EQ(error_message<c10::ValueError>([&] { agree([] { return outer_options(5); }); }),
              "sync_every differs between ranks: rank 0 has 4, rank 1 has 5");
    agree([] { return outer_options(4); });
    OuterOptimizer(*training.inner, group, outer_options(4));  // The group remains usable.
  });
}

TEST_P(OuterArguments, ParametersOfOneRankAreRefusedOnAll) {
  run_ranks(GetParam(), [&](int64_t rank, const auto& group) {
    const auto error = [&](const std::vector<at::Tensor>& usual, const std::vector<at::Tensor>& of_rank_1) {
      std::vector<at::Tensor> parameters;
      for (const at::Tensor& each : rank == 1 ? of_rank_1 : usual) parameters.push_back(each.clone().requires_grad_());
      torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1));
      return error_message<c10::ValueError>([&] { OuterOptimizer(sgd, group, outer_options(4)); });
    };
    const at::Tensor floats = at::zeros({2, 3});
    EXPECT_THAT(error({floats}, {floats.to(at::kDouble)}),
                HasSubstr("OuterOptimizer on rank 1: parameter 0 of the optimizer is Double"));
    EXPECT_EQ(error({floats}, {floats.t().contiguous()}),
              "parameter 0 differs between ranks: rank 0 has Float [2, 3], rank 1 has Float [3, 2]");
    EXPECT_EQ(error({floats}, {floats.to(at::kHalf)}),
              "parameter 0 differs between ranks: rank 0 has Float [2, 3], rank 1 has Half [2, 3]");
    EXPECT_EQ(error({floats}, {floats, floats}),
              "the number of parameters differs between ranks: rank 0 has 1, rank 1 has 2");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, OuterArguments, ::testing::Values(2, 3));

TEST(OuterArgumentsAlone, AreRefusedWithoutTheRank) {
  run_ranks(1, [&](int64_t rank, const auto& group) {
    const SmallTraining training(rank);
    EXPECT_EQ(error_message<c10::ValueError>(
                  [&] { agree_on_outer_options(*training.inner, group, [] { return outer_options(0); }); }),
              "sync_every: must be at least 1, but is 0");
  });
}

TEST(OuterParameters, AreEachOnceAndGetGradients) {
  const at::Tensor a = at::zeros({2}).requires_grad_();
  const at::Tensor b = at::zeros({3}).requires_grad_();
  const torch::optim::SGD sgd({a, at::zeros({5}), b, a}, torch::optim::SGDOptions(0.1));
  const std::vector<at::Tensor> parameters = outer_parameters_of(sgd);
  ASSERT_EQ(parameters.size(), 2);
  EXPECT_TRUE(parameters[0].is_same(a));
  EXPECT_TRUE(parameters[1].is_same(b));
  EXPECT_EQ(elements_of(parameters), 5);
}

}  // namespace
}  // namespace narrowcast::testing

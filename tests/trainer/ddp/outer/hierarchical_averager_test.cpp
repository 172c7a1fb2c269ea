#include <narrowcast/hierarchical_averager.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<AveragingLevel> kThreeLevels = {{2, 2}, {4, 4}, {8, 4}};

// PyTorch's test: 4 ranks, periods 2, 4 and 8, groups of 2, 4 and 4, and a warm-up of 10. Two ranks average at steps
// 10, 14, 18 and 22, and all four at 12, 16, 20 and 24.
TEST(HierarchicalAverager, HasPyTorchsKnownAnswers) {
  std::map<int64_t, int64_t> groups = {{10, 2}, {14, 2}, {18, 2}, {22, 2}, {12, 4}, {20, 4}, {16, 4}, {24, 4}};
  run_ranks(4, [&](int64_t rank, const auto& group) {
    HierarchicalAverager averager(group, kThreeLevels, 10);
    const std::vector<at::Tensor> parameters = {at::zeros({3, 5}).requires_grad_(), at::zeros({7}, at::kDouble)};
    for (int64_t step = 0; step < 25; ++step) {
      for (const at::Tensor& parameter : parameters) parameter.detach().fill_(static_cast<double>(rank));
      const auto due = groups.find(step);
      const int64_t size = due == groups.end() ? 0 : due->second;
      EXPECT_EQ(averager.average(parameters), size) << "step " << step;
      const double of_group = size == 4 ? 1.5 : rank < 2 ? 0.5 : 2.5;
      const double expected = size == 0 ? static_cast<double>(rank) : of_group;
      for (const at::Tensor& parameter : parameters) {
        EXPECT_TRUE(parameter.detach().eq(expected).all().template item<bool>()) << "step " << step;
      }
    }
    EXPECT_EQ(averager.step(), 25);
    EXPECT_GT(averager.payload_bytes_sent(), 0);
  });
}

TEST(HierarchicalAverager, GoesOnFromAStep) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    HierarchicalAverager averager(group, {{1, 1}, {3, 2}});
    const at::Tensor parameter = at::full({2}, static_cast<double>(rank));
    averager.set_step(2);
    EXPECT_EQ(averager.average({parameter}), 1) << "a group of one";
    EXPECT_EQ(parameter[0].template item<double>(), static_cast<double>(rank));
    EXPECT_EQ(averager.average({parameter}), 2);
    EXPECT_EQ(parameter[0].template item<double>(), 0.5);
  });
}

TEST(HierarchicalAverager, RefusesWhatDiffersBetweenRanks) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    EXPECT_THAT(error_message<c10::ValueError>([&] {
                  HierarchicalAverager(group, {{2 + rank, 2}});
                }),
                ::testing::AllOf(HasSubstr("levels"), HasSubstr("2 ranks every 3 steps")));
    EXPECT_THAT(error_message<c10::ValueError>([&] {
                  HierarchicalAverager(group, {{2, 2}}, rank);
                }),
                HasSubstr("warmup_steps"));
  });
}

TEST(HierarchicalAverager, RefusesLevelsThatThereCannotBe) {
  run_ranks(2, [](int64_t /*rank*/, const auto& group) {
    const auto refused = [&](const std::vector<AveragingLevel>& levels, int64_t warmup_steps = 0) {
      return error_message<c10::ValueError>([&] { HierarchicalAverager(group, levels, warmup_steps); });
    };
    EXPECT_THAT(refused({}), HasSubstr("levels: must not be empty"));
    EXPECT_THAT(refused({{0, 2}}), HasSubstr("periods must ascend from 1 or more, but 0 follows 0"));
    EXPECT_THAT(refused({{4, 1}, {2, 2}}), HasSubstr("but 2 follows 4"));
    EXPECT_THAT(refused({{2, 3}}), HasSubstr("group_size must be in 1..2, but is 3"));
    EXPECT_THAT(refused({{2, 1}}), HasSubstr("the last group_size must be the number of ranks (2), but is 1"));
    EXPECT_THAT(refused({{2, 2}}, -1), HasSubstr("warmup_steps: must be at least 0, but is -1"));
    EXPECT_THAT(error_message<c10::ValueError>([] { HierarchicalAverager({}, {{1, 1}}); }), HasSubstr("null"));
  });
}

}  // namespace
}  // namespace narrowcast::testing

#include "trainer/train/optimization/share_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;
using testing::run_ranks;

constexpr int64_t kBatch = 32;
constexpr int64_t kFirst = ShareChooser::kSkippedSteps + 2 * ShareChooser::kFirstHalf;
constexpr int64_t kWindow = 2 * ShareChooser::kHalf;

struct Decision {
  int64_t step;
  std::vector<int64_t> samples;
};

using Shares = std::vector<int64_t>;

// The decisions of `steps` steps of two ranks, in which a rank computes seconds(rank, step, shares) for each sample.
std::vector<Decision> decisions_by_shares(
    int64_t steps, const std::function<double(int64_t rank, int64_t step, const Shares& shares)>& seconds) {
  std::vector<std::vector<Decision>> decisions(2);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    ShareChooser chooser(group, kBatch, 1);
    for (int64_t step = 1; step <= steps; ++step) {
      const auto samples = static_cast<double>(chooser.shares()[static_cast<size_t>(rank)]);
      if (const auto chosen = chooser.end_step(samples * seconds(rank, step, chooser.shares()))) {
        EXPECT_EQ(chosen->samples, chooser.shares());
        decisions[static_cast<size_t>(rank)].push_back({step, chosen->samples});
      }
    }
  });
  EXPECT_EQ(decisions[0].size(), decisions[1].size());
  for (size_t i = 0; i < decisions[0].size(); ++i) {
    EXPECT_EQ(decisions[0][i].step, decisions[1][i].step);
    EXPECT_EQ(decisions[0][i].samples, decisions[1][i].samples);
  }
  return decisions[0];
}

std::vector<Decision> decisions_of(int64_t steps, const std::function<double(int64_t rank, int64_t step)>& seconds) {
  return decisions_by_shares(steps, [&](int64_t rank, int64_t step, const Shares&) { return seconds(rank, step); });
}

TEST(ShareChooser, DealsByTheSpeedsOfTheFirstSteps) {
  const auto decisions = decisions_of(200, [](int64_t rank, int64_t) { return rank == 0 ? 0.001 : 0.003; });
  ASSERT_EQ(decisions.size(), 1) << "the speeds do not change";
  EXPECT_EQ(decisions[0].step, kFirst);
  EXPECT_THAT(decisions[0].samples, ElementsAre(24, 8));
}

TEST(ShareChooser, SaysThatSharesStayEqual) {
  const auto decisions = decisions_of(200, [](int64_t rank, int64_t) { return rank == 0 ? 0.001 : 0.00102; });
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_THAT(decisions[0].samples, ElementsAre(16, 16));
}

TEST(ShareChooser, DealsLessToARankThatBecomesSlowWithinAHundredSteps) {
  for (const int64_t slow_from :
       {kFirst + 1, kFirst + 5, kFirst + kWindow / 2, kFirst + kWindow, kFirst + kWindow + 2}) {
    const auto decisions = decisions_of(
        slow_from + 100, [&](int64_t rank, int64_t step) { return rank == 1 && step >= slow_from ? 0.004 : 0.001; });
    ASSERT_GE(decisions.size(), 2) << slow_from;
    EXPECT_LT(decisions.back().step, slow_from + 100);
    EXPECT_THAT(decisions.back().samples, ElementsAre(26, 6));
    EXPECT_GE(decisions[1].step, slow_from);
  }
}

// One step of a window takes as long as all the others.
TEST(ShareChooser, IgnoresOnePause) {
  const auto decisions =
      decisions_of(200, [](int64_t rank, int64_t step) { return rank == 1 && step == 50 ? 0.1 : 0.001; });
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_THAT(decisions[0].samples, ElementsAre(16, 16));
}

// With a quota a rank runs at full speed, and then not at all.
TEST(ShareChooser, SeesTheMeanSpeedOfARankWithAQuota) {
  const auto decisions =
      decisions_of(200, [](int64_t rank, int64_t step) { return rank == 1 && step % 3 == 0 ? 0.007 : 0.001; });
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_THAT(decisions[0].samples, ElementsAre(24, 8));
}

// Rank 0 has 40% of a processor and rank 1 20%. The rank for which the other waits uses up its quota; the other one
// does not, and computes at full speed.
TEST(ShareChooser, DoesNotSwingWithQuotas) {
  const auto with_quotas = [](int64_t rank, int64_t, const Shares& shares) {
    const double of_rank_0 = static_cast<double>(shares[0]) / 0.4;
    const double of_rank_1 = static_cast<double>(shares[1]) / 0.2;
    const bool is_slowest = rank == 0 ? of_rank_0 >= of_rank_1 : of_rank_1 >= of_rank_0;
    return 0.001 / (!is_slowest ? 1 : rank == 0 ? 0.4 : 0.2);
  };
  const auto decisions = decisions_by_shares(2000, with_quotas);
  for (const Decision& decision : decisions) {
    if (decision.step < 200) continue;
    EXPECT_NEAR(static_cast<double>(decision.samples[0]), kBatch * 2.0 / 3, 1.5) << decision.step;
  }
}

TEST(ShareChooser, DealsMoreToARankThatBecomesFastLittleByLittle) {
  const auto decisions =
      decisions_of(400, [](int64_t rank, int64_t step) { return rank == 1 && step < 100 ? 0.003 : 0.001; });
  ASSERT_GE(decisions.size(), 3);
  EXPECT_THAT(decisions[0].samples, ElementsAre(24, 8));
  EXPECT_LE(decisions[1].samples[1], 9);
  EXPECT_NEAR(static_cast<double>(decisions.back().samples[0]), 16, 1);
}

TEST(ShareChooser, LeavesOutTheFirstSteps) {
  const auto decisions = decisions_of(
      kFirst, [](int64_t rank, int64_t step) { return rank == 1 && step <= ShareChooser::kSkippedSteps ? 10 : 0.001; });
  ASSERT_EQ(decisions.size(), 1);
  EXPECT_THAT(decisions[0].samples, ElementsAre(16, 16));
}

TEST(ShareChooser, ResumesFromSharesThatFit) {
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    ShareChooser chooser(group, kBatch, 2);
    EXPECT_THAT(chooser.shares(), ElementsAre(16, 16));
    chooser.resume({30, 2});
    EXPECT_THAT(chooser.shares(), ElementsAre(30, 2));
    for (const std::vector<int64_t>& wrong :
         std::vector<std::vector<int64_t>>{{32}, {32, 0}, {16, 15}, {20, 20}, {16, 8, 8}, {-2, 34}, {INT64_MAX, 2}}) {
      EXPECT_THAT(testing::error_message<CorruptInputError>([&] { chooser.resume(wrong); }),
                  ::testing::EndsWith("do not divide 32 samples among 2 ranks"));
    }
    EXPECT_THAT(chooser.shares(), ElementsAre(30, 2));
  });
}

// A resume may have more accumulation steps.
TEST(ShareChooser, BeginsAgainIfAFormerShareIsTooSmallNow) {
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    ShareChooser chooser(group, kBatch, 2);
    chooser.resume({31, 1});
    EXPECT_THAT(chooser.shares(), ElementsAre(16, 16));
  });
}

}  // namespace
}  // namespace narrowcast::training

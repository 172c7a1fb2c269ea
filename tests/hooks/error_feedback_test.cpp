#include "hooks/error_feedback.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/hooks/parameters_bucket.h"

namespace narrowcast::hooks {
namespace {

using collectives::Residuals;
using collectives::shard_of;

// Two ranks, of which this is the second: its shard is the second half.
constexpr int64_t kRank = 1;
constexpr int64_t kFeedbackRanks = 2;
constexpr int64_t kFeedbackNumel = 2048;

class ErrorFeedbackTest : public ::testing::Test {
 protected:
  Residuals residuals(const std::vector<at::Tensor>& parameters, size_t index = 0, size_t count = 1) {
    const auto bucket = make_parameters_bucket(parameters, parameters, index, count);
    return feedback_.residuals(bucket, layout_of(bucket));
  }
  ErrorFeedback feedback_{kRank, kFeedbackRanks};
  const at::Tensor a_ = at::zeros({2, kFeedbackNumel / 2});
  const at::Tensor b_ = at::zeros({2, kFeedbackNumel / 2});
};

TEST_F(ErrorFeedbackTest, BeginsWithZerosAndKeepsItsPlace) {
  const Residuals first = residuals({a_, b_});
  for (int64_t i = 0; i < 2 * kFeedbackNumel; ++i) ASSERT_EQ(first.own[i], 0);
  for (int64_t i = 0; i < shard_of(kRank, kFeedbackRanks, 2 * kFeedbackNumel).numel; ++i) ASSERT_EQ(first.mean[i], 0);
  first.own[7] = 1;
  first.mean[9] = 2;
  const Residuals second = residuals({a_, b_});
  EXPECT_EQ(second.own, first.own);
  EXPECT_EQ(second.mean, first.mean);
  EXPECT_EQ(second.own[7], 1);
  EXPECT_EQ(second.mean[9], 2);
}

TEST_F(ErrorFeedbackTest, GoesWithItsParameterIntoARebuiltBucket) {
  const Residuals first = residuals({a_, b_});
  first.own[3] = 5;                   // a_[3]
  first.own[kFeedbackNumel + 4] = 6;  // b_[4]
  first.mean[11] = 0.5;               // b_[11]: the shard is the second half.
  const Residuals second = residuals({b_, a_});
  EXPECT_EQ(second.own[kFeedbackNumel + 3], 5);
  EXPECT_EQ(second.own[4], 6);
  EXPECT_EQ(second.own[11], 1) << "0.5 missing in a mean of two ranks is 1 missing in one rank's part";
  for (int64_t i = 0; i < kFeedbackNumel; ++i) ASSERT_EQ(second.mean[i], 0);
}

TEST_F(ErrorFeedbackTest, GoesFromOneBucketIntoTwoAndBack) {
  residuals({a_, b_}).own[kFeedbackNumel + 1] = 8;  // b_[1]
  residuals({a_}, 0, 2);
  const Residuals b = residuals({b_}, 1, 2);
  EXPECT_EQ(b.own[1], 8);
  b.own[2] = 9;
  const Residuals both = residuals({b_, a_});
  EXPECT_EQ(both.own[1], 8);
  EXPECT_EQ(both.own[2], 9);
}

TEST_F(ErrorFeedbackTest, LeavesBucketsAloneThatAreOnTheirWay) {
  const at::Tensor c = at::zeros({4});
  const Residuals first = residuals({a_}, 0, 2);
  residuals({b_}, 1, 2).own[0] = 3;
  EXPECT_EQ(residuals({a_}, 0, 2).own, first.own);
  const Residuals rebuilt = residuals({c, b_}, 1, 2);
  EXPECT_EQ(residuals({a_}, 0, 2).own, first.own);
  EXPECT_EQ(rebuilt.own[4], 3);
}

TEST_F(ErrorFeedbackTest, BelongsToTheIndexOfABucketWithoutParameters) {
  const c10d::GradBucket bucket(0, 1, at::zeros({10}), {}, {}, {}, {}, std::nullopt);
  feedback_.residuals(bucket, {}).own[5] = 1;
  EXPECT_EQ(feedback_.residuals(bucket, {}).own[5], 1);
}

}  // namespace
}  // namespace narrowcast::hooks

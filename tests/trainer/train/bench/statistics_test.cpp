#include "trainer/train/bench/statistics.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/error_message.h"

namespace narrowcast::bench {
namespace {

using testing::error_message;
using ::testing::HasSubstr;

std::vector<double> one_to(int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(Quantile, IsTheNearestRank) {
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(quantile({3, 1, 2}, 0.3), 1);
  EXPECT_EQ(quantile({3, 1, 2}, 0.34), 2);
  EXPECT_EQ(quantile(one_to(20), 0.99), 20);
  EXPECT_EQ(quantile(one_to(1000), 0.99), 990);
  EXPECT_THROW(quantile({}, 0.5), c10::ValueError);
  EXPECT_THAT(error_message<c10::ValueError>([] { quantile({1}, 0); }), HasSubstr("(0, 1], but is 0"));
  EXPECT_THAT(error_message<c10::ValueError>([] { quantile({1}, 1.5); }), HasSubstr("but is 1.5"));
}

TEST(MedianInterval, NeedsSixValues) {
  EXPECT_FALSE(median_interval({}));
  EXPECT_FALSE(median_interval(one_to(kFewestForInterval - 1)));
  EXPECT_LE(2 * std::pow(0.5, kFewestForInterval), 1 - kConfidence);
  EXPECT_GT(2 * std::pow(0.5, kFewestForInterval - 1), 1 - kConfidence);
}

struct TabledInterval {
  int64_t n;
  double lower;
  double upper;
};

class MedianIntervals : public ::testing::TestWithParam<TabledInterval> {};

// Values from tables of the sign test.
TEST_P(MedianIntervals, AreOrderStatistics) {
  std::vector<double> values = one_to(GetParam().n);
  std::reverse(values.begin(), values.end());
  const auto interval = median_interval(values);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->lower, GetParam().lower);
  EXPECT_EQ(interval->upper, GetParam().upper);
}

INSTANTIATE_TEST_SUITE_P(Tables, MedianIntervals,
                         ::testing::Values(TabledInterval{6, 1, 6}, TabledInterval{8, 1, 8}, TabledInterval{9, 2, 8},
                                           TabledInterval{10, 2, 9}, TabledInterval{20, 6, 15},
                                           TabledInterval{50, 18, 33}, TabledInterval{100, 40, 61}));

// The share of intervals that contain the known median of skewed values: at least the promised share, and below 1.
TEST(MedianInterval, HoldsTheMedianAsOftenAsItSays) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> values(0, 1);
  constexpr int kTrials = 4000;
  int held = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> sample(20);
    std::generate(sample.begin(), sample.end(), [&] { return values(random); });
    const auto interval = median_interval(sample);
    held += interval->lower <= 1 && 1 <= interval->upper ? 1 : 0;
  }
  EXPECT_GE(held, 0.945 * kTrials);  // 0.9586 for n = 20, minus four standard errors
  EXPECT_LE(held, 0.975 * kTrials);
}

TEST(FitLine, FindsALineThatIsThere) {
  const auto line = fit_line({{1, 5}, {2, 7}, {10, 23}, {100, 203}});
  ASSERT_TRUE(line);
  EXPECT_NEAR(line->intercept, 3, 1e-12);
  EXPECT_NEAR(line->slope, 2, 1e-12);
  EXPECT_NEAR(line->worst_residual, 0, 1e-12);
}

TEST(FitLine, MinimisesTheSquaresOfRelativeResiduals) {
  const std::vector<Point> points = {{1, 1.1}, {10, 1.9}, {100, 12}, {1000, 95}};
  const auto line = fit_line(points);
  ASSERT_TRUE(line);
  const auto cost = [&](double intercept, double slope) {
    double sum = 0;
    for (const Point& point : points) {
      sum += std::pow((intercept + slope * point.x - point.y) / point.y, 2);
    }
    return sum;
  };
  const double least = cost(line->intercept, line->slope);
  for (const double step : {-1e-3, 1e-3}) {
    EXPECT_LT(least, cost(line->intercept + step, line->slope));
    EXPECT_LT(least, cost(line->intercept, line->slope * (1 + step)));
  }
  double worst = 0;
  for (const Point& point : points) {
    worst = std::max(worst, std::abs(line->intercept + line->slope * point.x - point.y) / point.y);
  }
  EXPECT_DOUBLE_EQ(line->worst_residual, worst);
}

TEST(FitLine, NeedsThreeDifferentX) {
  EXPECT_FALSE(fit_line({}));
  EXPECT_FALSE(fit_line({{1, 1}, {2, 2}, {2, 3}, {1, 4}}));
  EXPECT_TRUE(fit_line({{1, 1}, {2, 2}, {3, 3}}));
}

}  // namespace
}  // namespace narrowcast::bench

// Statistics of measured times: few values, of unknown distribution, with outliers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace narrowcast::bench {

// The quantile by nearest rank: the ceil(share * n)-th value in ascending order, which a `share` of the values do not
// exceed. The 0.99 quantile of fewer than 100 values is the greatest. Throws c10::ValueError without values, or for a
// share outside (0, 1].
double quantile(std::vector<double> values, double share);

// From `lower` to `upper`, inclusive.
struct Interval {
  double lower = 0;
  double upper = 0;
};

// The confidence of each single interval and comparison of this program.
inline constexpr double kConfidence = 0.95;

// The fewest values that have a median_interval: the smallest n with 2 / 2^n <= 1 - kConfidence.
inline constexpr int64_t kFewestForInterval = 6;

// The distribution-free confidence interval of the median by order statistics, for independent values. It extends from
// the k-th smallest to the k-th greatest of n values, with the greatest k for which 2 P(B < k) <= 1 - kConfidence,
// where B is binomial with n trials of probability 1/2. It inverts the sign test: it contains the medians that this
// test would not reject. Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1; first in
// W. R. Thompson, On confidence ranges for the median, Annals of Mathematical Statistics 7 (1936). Empty for fewer than
// kFewestForInterval values, since not even the smallest and the greatest value reach the confidence.
std::optional<Interval> median_interval(std::vector<double> values);

// A point of measured data, y > 0.
struct Point {
  double x = 0;
  double y = 0;
};

// y = intercept + slope x.
struct Line {
  double intercept = 0;
  double slope = 0;
  double worst_residual = 0;  // the largest |intercept + slope x - y| / y of the points
};

// The line of least squares of relative residuals: it minimises the sum of ((intercept + slope x - y) / y)^2. Residuals
// are relative since times of sizes that grow by factors vary in proportion to themselves. With absolute residuals, the
// noise of the largest size would hide the latency of the smallest. It is weighted linear regression with these weights
// and means:
//
//   w = 1 / y^2,  m(v) = sum(w v) / sum(w),
//   slope = sum(w (x - m(x)) (y - m(y))) / sum(w (x - m(x))^2),  intercept = m(y) - slope m(x)
// (N. R. Draper and H. Smith, Applied Regression Analysis, 3rd edition, section 9.2). Empty for fewer than three
// different x: two points lie on any line.
std::optional<Line> fit_line(const std::vector<Point>& points);

}  // namespace narrowcast::bench

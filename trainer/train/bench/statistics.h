// Statistics of measured times: few values, of a distribution that nobody knows, with outliers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace narrowcast::bench {

// The value that a share of them do not exceed, by nearest rank: the ceil(share * n)-th in ascending order. The 0.99
// quantile of fewer than 100 values is the greatest. Throws c10::ValueError without values, or for a share that is not
// in (0, 1].
double quantile(std::vector<double> values, double share);

// From `lower` to `upper`, both of them included.
struct Interval {
  double lower = 0;
  double upper = 0;
};

// The confidence that intervals and comparisons of this program have, each by itself.
inline constexpr double kConfidence = 0.95;

// The fewest values that have a median_interval: the least n with 2 / 2^n <= 1 - kConfidence.
inline constexpr int64_t kFewestForInterval = 6;

// The distribution-free confidence interval of the median by order statistics, for independent values: from the k-th
// smallest to the k-th greatest of n, with the greatest k for which 2 P(B < k) <= 1 - kConfidence, where B is binomial
// with n trials of probability 1/2. It is the sign test turned round: it holds the medians that this test would not
// reject. Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1; first in W. R. Thompson,
// On confidence ranges for the median, Annals of Mathematical Statistics 7 (1936). None for fewer than
// kFewestForInterval values, whose least and greatest are not far enough apart.
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

// The line of least squares of relative residuals: the one that minimises the sum of ((intercept + slope x - y) / y)^2.
// Relative, since times of sizes that grow by factors scatter by a share of themselves: with absolute residuals the
// noise of the largest would decide what is seen of the latency of the smallest. It is weighted linear regression with
// the weights w = 1 / y^2, so with means m(v) = sum(w v) / sum(w)
//   slope = sum(w (x - m(x)) (y - m(y))) / sum(w (x - m(x))^2),  intercept = m(y) - slope m(x)
// (N. R. Draper and H. Smith, Applied Regression Analysis, 3rd edition, section 9.2). None for fewer than three
// different x: two points lie on any line.
std::optional<Line> fit_line(const std::vector<Point>& points);

}  // namespace narrowcast::bench

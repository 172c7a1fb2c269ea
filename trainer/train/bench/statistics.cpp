#include "trainer/train/bench/statistics.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace narrowcast::bench {
namespace {

// The probability of `heads` heads in n tosses of a fair coin.
double probability_of_heads(int64_t heads, int64_t n) {
  const auto tosses = static_cast<double>(n);
  const auto shown = static_cast<double>(heads);
  const double choices = std::lgamma(tosses + 1) - std::lgamma(shown + 1) - std::lgamma(tosses - shown + 1);
  return std::exp(choices - tosses * std::log(2));
}

// The k of median_interval; 0 for too few values.
int64_t order_of_interval(int64_t n) {
  double below = 0;  // P(B < k + 1)
  int64_t k = 0;
  while (true) {
    below += probability_of_heads(k, n);
    if (2 * below > 1 - kConfidence) {
      return k;
    }
    ++k;
  }
}

double weight_of(const Point& point) { return 1 / (point.y * point.y); }

Point weighted_mean(const std::vector<Point>& points) {
  double weights = 0;
  Point sum;
  for (const Point& point : points) {
    weights += weight_of(point);
    sum.x += weight_of(point) * point.x;
    sum.y += weight_of(point) * point.y;
  }
  return {sum.x / weights, sum.y / weights};
}

size_t different_x(const std::vector<Point>& points) {
  std::set<double> values;
  for (const Point& point : points) {
    values.insert(point.x);
  }
  return values.size();
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  TORCH_CHECK_VALUE(!values.empty(), "values must not be empty");
  TORCH_CHECK_VALUE(share > 0 && share <= 1, "share: must be in (0, 1], but is ", share);
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto value = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(values.begin(), value, values.end());
  return *value;
}

std::optional<Interval> median_interval(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  const int64_t k = n < kFewestForInterval ? 0 : order_of_interval(n);
  if (k == 0) {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  return Interval{values[static_cast<size_t>(k - 1)], values[static_cast<size_t>(n - k)]};
}

std::optional<Line> fit_line(const std::vector<Point>& points) {
  if (different_x(points) < 3) {
    return std::nullopt;
  }
  const Point mean = weighted_mean(points);
  double products = 0;
  double squares = 0;
  for (const Point& point : points) {
    products += weight_of(point) * (point.x - mean.x) * (point.y - mean.y);
    squares += weight_of(point) * (point.x - mean.x) * (point.x - mean.x);
  }
  Line line;
  line.slope = products / squares;
  line.intercept = mean.y - line.slope * mean.x;
  for (const Point& point : points) {
    const double residual = std::abs(line.intercept + line.slope * point.x - point.y) / point.y;
    line.worst_residual = std::max(line.worst_residual, residual);
  }
  return line;
}

}  // namespace narrowcast::bench

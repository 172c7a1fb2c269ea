#include "trainer/train/verification/hook_report.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "trainer/train/reporting/formatting.h"

namespace narrowcast::verification {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest element; 0 for an empty tensor, infinity if an element is NaN.
double largest(const at::Tensor& values) {
  if (values.numel() == 0) {
    return 0;
  }
  const double value = values.max().item<double>();  // max() propagates NaN.
  return std::isnan(value) ? kInfinity : value;
}

// a / b, with 0 / 0 = 0.
at::Tensor ratio(const at::Tensor& a, const at::Tensor& b) { return at::where(a == 0, at::zeros_like(a), a / b); }

std::string scientific(double value) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(2) << value;
  return text.str();
}

std::string verdict(const HookReport& report) {
  if (!report.replicas_identical) {
    return "FAIL: ranks differ";
  }
  if (!report.comparison.passed) {
    return "FAIL: tolerance";
  }
  return report.passed() ? "pass" : "FAIL: reference test's tolerance";
}

reporting::TableRow row_of(const HookReport& report) {
  return {name_of(report),
          scientific(report.comparison.largest_absolute),
          scientific(report.comparison.largest_relative),
          scientific(report.comparison.tolerance),
          reporting::format_percent(report.comparison.worst_share),
          reporting::format_bytes(static_cast<double>(report.payload_bytes_sent)),
          std::to_string(std::lround(report.seconds * 1e6)) + " us",
          verdict(report)};
}

}  // namespace

Comparison compare(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& tolerance) {
  TORCH_CHECK_VALUE(actual.sizes() == expected.sizes() && actual.sizes() == tolerance.sizes(),
                    "compare: shapes differ: ", actual.sizes(), ", ", expected.sizes(), " and ", tolerance.sizes());
  const at::Tensor wanted = expected.to(at::kDouble);
  const at::Tensor difference = (actual.to(at::kDouble) - wanted).abs();
  const at::Tensor nonzero = wanted != 0;
  return {.largest_absolute = largest(difference),
          .largest_relative = largest(ratio(difference, wanted.abs()).masked_select(nonzero)),
          .tolerance = largest(tolerance),
          .worst_share = largest(ratio(difference, tolerance)),
          .passed = (difference <= tolerance).all().item<bool>() && std::isfinite(largest(tolerance))};
}

Comparison worse_of(const Comparison& a, const Comparison& b) {
  return {.largest_absolute = std::max(a.largest_absolute, b.largest_absolute),
          .largest_relative = std::max(a.largest_relative, b.largest_relative),
          .tolerance = std::max(a.tolerance, b.tolerance),
          .worst_share = std::max(a.worst_share, b.worst_share),
          .passed = a.passed && b.passed};
}

std::string name_of(const HookReport& report) {
  const std::string nodes = report.node_size == 1 ? "" : ".nodes_of_" + std::to_string(report.node_size);
  return report.hook + nodes + (report.has_shares ? ".shares" : "");
}

std::string gradient_table(const std::vector<HookReport>& reports) {
  std::vector<reporting::TableRow> rows = {
      {"hook", "max abs diff", "max rel diff", "tolerance", "used", "sent per rank", "time", "result"}};
  std::transform(reports.begin(), reports.end(), std::back_inserter(rows), row_of);
  return reporting::aligned_table(rows, "lrrrrrrl");
}

}  // namespace narrowcast::verification

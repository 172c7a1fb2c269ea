#include "trainer/train/verification/gradient_table.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "trainer/train/reporting/quantities.h"
#include "trainer/train/reporting/table.h"

namespace narrowcast::verification {
namespace {

std::string scientific(double value) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(2) << value;
  return text.str();
}

std::string percent(double share) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(0) << share * 100 << "%";
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
  return {report.hook,
          scientific(report.comparison.largest_absolute),
          scientific(report.comparison.largest_relative),
          scientific(report.comparison.tolerance),
          percent(report.comparison.worst_share),
          reporting::format_bytes(static_cast<double>(report.payload_bytes_sent)),
          std::to_string(std::lround(report.seconds * 1e6)) + " us",
          verdict(report)};
}

}  // namespace

std::string gradient_table(const std::vector<HookReport>& reports) {
  std::vector<reporting::TableRow> rows = {
      {"hook", "max abs diff", "max rel diff", "tolerance", "used", "sent per rank", "time", "result"}};
  std::transform(reports.begin(), reports.end(), std::back_inserter(rows), row_of);
  return reporting::aligned_table(rows, "lrrrrrrl");
}

}  // namespace narrowcast::verification

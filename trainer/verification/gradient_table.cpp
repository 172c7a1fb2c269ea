#include "trainer/verification/gradient_table.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "trainer/reporting/quantities.h"

namespace narrowcast::verification {
namespace {

using Row = std::vector<std::string>;

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

Row row_of(const HookReport& report) {
  return {report.hook,
          scientific(report.comparison.largest_absolute),
          scientific(report.comparison.largest_relative),
          scientific(report.comparison.tolerance),
          percent(report.comparison.worst_share),
          reporting::format_bytes(static_cast<double>(report.payload_bytes_sent)),
          std::to_string(std::lround(report.seconds * 1e6)) + " us",
          verdict(report)};
}

// The first and the last column are aligned to the left, numbers to the right.
std::string line_of(const Row& row, const std::vector<size_t>& widths) {
  std::ostringstream line;
  line << std::left << std::setw(static_cast<int>(widths[0])) << row[0] << std::right;
  for (size_t i = 1; i + 1 < row.size(); ++i) {
    line << "  " << std::setw(static_cast<int>(widths[i])) << row[i];
  }
  line << "  " << row.back() << "\n";
  return line.str();
}

}  // namespace

std::string gradient_table(const std::vector<HookReport>& reports) {
  std::vector<Row> rows = {
      {"hook", "max abs diff", "max rel diff", "tolerance", "used", "sent per rank", "time", "result"}};
  std::transform(reports.begin(), reports.end(), std::back_inserter(rows), row_of);
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string table;
  for (const Row& row : rows) {
    table += line_of(row, widths);
  }
  return table;
}

}  // namespace narrowcast::verification

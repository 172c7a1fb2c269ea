#include "trainer/launcher/workers/failure_record.h"

#include <algorithm>

#include "trainer/base/program/exit_code.h"
#include "trainer/launcher/workers/last_lines.h"

namespace narrowcast::launcher {

NodeReport bounded(NodeReport report) {
  report.text = cut_text(report.text);
  if (report.failure) {
    FailureRecord& failure = *report.failure;
    failure.message = cut_text(failure.message);
    failure.log_file = cut_text(failure.log_file);
    std::vector<std::string>& lines = failure.last_lines;
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(std::min(lines.size(), kMostLines)));
    std::transform(lines.begin(), lines.end(), lines.begin(), cut_text);
  }
  return report;
}

int GroupEnd::exit_code() const {
  switch (cause) {
    case Cause::kFailed:
      return failure->ending.code();
    case Cause::kInterrupted:
      return 128 + signal;
    case Cause::kMembership:
    case Cause::kAborted:
      return code;
    case Cause::kSucceeded:
      break;
  }
  return program::kSuccess;
}

}  // namespace narrowcast::launcher

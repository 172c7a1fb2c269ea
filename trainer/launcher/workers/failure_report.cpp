#include "trainer/launcher/workers/failure_report.h"

#include <cstring>
#include <ctime>
#include <iomanip>
#include <sstream>

#include "trainer/base/files/printable.h"
#include "trainer/launcher/workers/last_lines.h"

namespace narrowcast::launcher {
namespace {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? std::to_string(signal) : std::string("SIG") + name;
}

std::string seconds(std::chrono::milliseconds duration) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(duration.count()) / 1000.0 << " s";
  return text.str();
}

std::string local_time(int64_t milliseconds) {
  const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::ostringstream text;
  text << std::put_time(&local, "%Y-%m-%d %H:%M:%S");
  return text.str();
}

// What became of the other ranks.
std::string ending_of_others(const GroupEnd& end) {
  if (end.left_behind) {
    return "; not all processes could be ended, even by SIGKILL";
  }
  if (end.stopped_ranks == 0) {
    return "";
  }
  return "; stopped " + std::to_string(end.stopped_ranks) + (end.stopped_ranks == 1 ? " rank" : " ranks") +
         " that ran" + (end.killed ? ", with SIGKILL" : "");
}

std::string headline(const GroupEnd& end) {
  const FailureRecord& failure = *end.failure;
  return "rank " + std::to_string(failure.rank) + (failure.node.empty() ? "" : " on " + failure.node) + " (pid " +
         std::to_string(failure.pid) + ") failed first: " + describe(failure.ending) + ", " + seconds(failure.after) +
         " after the start, at " + local_time(failure.time_ms) + ending_of_others(end);
}

// What a worker wrote, as a terminal only shows it. Its texts are cut already; escaped they may be longer.
std::string shown(const std::string& text) { return printable(text, 2 * kLongestText); }

std::vector<std::string> failure_lines(const GroupEnd& end) {
  const FailureRecord& failure = *end.failure;
  std::vector<std::string> lines = {headline(end)};
  if (!failure.message.empty()) {
    lines.push_back("its error: " + shown(failure.message));
  }
  if (!failure.log_file.empty()) {
    lines.push_back("its standard error is in " + failure.log_file);
  }
  if (!failure.last_lines.empty()) {
    lines.emplace_back("its last lines on standard error:");
  }
  for (const std::string& line : failure.last_lines) {
    lines.push_back("    " + shown(line));
  }
  return lines;
}

}  // namespace

std::string describe(const Ending& ending) {
  if (ending.signal == 0) {
    return "exit code " + std::to_string(ending.exit_code);
  }
  return "signal " + signal_name(ending.signal) + " (" + strsignal(ending.signal) + ")";
}

std::vector<std::string> describe_end(const GroupEnd& end) {
  switch (end.cause) {
    case GroupEnd::Cause::kFailed:
      return failure_lines(end);
    case GroupEnd::Cause::kInterrupted:
      return {"stopped by " + signal_name(end.signal) + (end.text.empty() ? "" : " on " + end.text) +
              ending_of_others(end)};
    case GroupEnd::Cause::kMembership:
    case GroupEnd::Cause::kAborted:
      return {end.text + ending_of_others(end)};
    case GroupEnd::Cause::kSucceeded:
      break;
  }
  return end.left_behind ? std::vector<std::string>{"every rank succeeded, but not all processes they left could be "
                                                    "ended, even by SIGKILL"}
                         : std::vector<std::string>{};
}

}  // namespace narrowcast::launcher

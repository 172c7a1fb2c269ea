#include "trainer/launcher/failure_report.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace narrowcast::launcher {
namespace {

constexpr std::streamoff kTail = 64 << 10;
constexpr size_t kMostLines = 10;

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? std::to_string(signal) : std::string("SIG") + name;
}

std::string seconds(std::chrono::milliseconds duration) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(duration.count()) / 1000.0 << " s";
  return text.str();
}

// What became of the other ranks.
std::string ending_of_others(const Outcome& outcome) {
  if (outcome.left_behind) {
    return "; not all processes could be ended, even by SIGKILL";
  }
  if (outcome.stopped_ranks == 0) {
    return "";
  }
  return "; stopped " + std::to_string(outcome.stopped_ranks) + (outcome.stopped_ranks == 1 ? " rank" : " ranks") +
         " that ran" + (outcome.killed ? ", with SIGKILL" : "");
}

}  // namespace

std::string read_error_message(const std::filesystem::path& error_file) {
  std::ifstream file(error_file);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) {
    return "";
  }
  const auto& message = json["message"];
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return message["message"];
  }
  return message.is_string() ? std::string(message) : "";
}

std::vector<std::string> read_last_lines(const std::filesystem::path& path, size_t most) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::string> lines;
  if (!file) {
    return lines;
  }
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string line;
  if (size > kTail) {
    std::getline(file, line);  // Most likely only the end of a line.
  }
  while (std::getline(file, line)) {
    lines.push_back(line);
  }
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(std::min(most, lines.size())));
  return lines;
}

std::string describe(const Ending& ending) {
  if (ending.signal == 0) {
    return "exit code " + std::to_string(ending.exit_code);
  }
  return "signal " + signal_name(ending.signal) + " (" + strsignal(ending.signal) + ")";
}

std::vector<std::string> failure_report(const Outcome& outcome, const FailureDetails& details) {
  const WorkerFailure& failure = *outcome.failure;
  std::vector<std::string> lines = {"rank " + std::to_string(failure.rank) + " (pid " + std::to_string(failure.pid) +
                                    ") failed first: " + describe(failure.ending) + ", " + seconds(failure.after) +
                                    " after the start, at " + details.ended_at + ending_of_others(outcome)};
  const std::string message = read_error_message(details.error_file);
  if (!message.empty()) {
    lines.push_back("its error: " + message);
  }
  if (!details.log_file.empty()) {
    lines.push_back("its standard error is in " + details.log_file.string());
  }
  const std::vector<std::string> tail =
      details.log_file.empty() ? details.last_lines : read_last_lines(details.log_file, kMostLines);
  if (!tail.empty()) {
    lines.emplace_back("its last lines on standard error:");
  }
  for (const std::string& line : tail) {
    lines.push_back("    " + line);
  }
  return lines;
}

std::string interruption_report(const Outcome& outcome) {
  return "stopped by " + signal_name(outcome.interrupted_by) + ending_of_others(outcome);
}

}  // namespace narrowcast::launcher

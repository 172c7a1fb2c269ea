// What the launcher tells its user about a rank that failed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/launcher/supervisor.h"

namespace narrowcast::launcher {

// What is known beyond the outcome.
struct FailureDetails {
  std::string ended_at;                 // local time
  std::filesystem::path error_file;     // where the rank may have said why
  std::filesystem::path log_file;       // its standard error, if it went to a file
  std::vector<std::string> last_lines;  // of its standard error, if the launcher showed it
};

// The message of a worker's error file, as torchrun's workers and ours write it:
// {"message": {"message": "M", ...}} or {"message": "M"}. Empty if the file is not
// there or holds something else; a failure is reported anyway.
std::string read_error_message(const std::filesystem::path& error_file);

// The last lines of a file, oldest first, at most `most` of them and from its last
// 64 KiB; none if it cannot be read.
std::vector<std::string> read_last_lines(const std::filesystem::path& file, size_t most);

// "exit code 7" or "signal SIGKILL (Killed)".
std::string describe(const Ending& ending);

// The lines to print about `outcome`, whose `failure` is set; the first one says it all.
std::vector<std::string> failure_report(const Outcome& outcome, const FailureDetails& details);

// The line to print about an `outcome` that a signal brought about.
std::string interruption_report(const Outcome& outcome);

}  // namespace narrowcast::launcher

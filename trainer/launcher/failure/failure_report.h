// What the launcher tells its user about how a job or a round of it ended.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/launcher/failure/failure_record.h"

namespace narrowcast::launcher {

// How many of a failed rank's last lines are shown.
constexpr size_t kMostLines = 10;

// The last lines of a file, oldest first, at most `most` of them and from its last
// 64 KiB; none if it cannot be read.
std::vector<std::string> read_last_lines(const std::filesystem::path& file, size_t most);

// "exit code 7" or "signal SIGKILL (Killed)".
std::string describe(const Ending& ending);

// The lines to print about an end; the first one says it all. None for success.
std::vector<std::string> describe_end(const GroupEnd& end);

}  // namespace narrowcast::launcher

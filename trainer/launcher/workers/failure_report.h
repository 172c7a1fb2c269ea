// What the launcher tells its user about how a job or a round of it ended.
#pragma once

#include <string>
#include <vector>

#include "trainer/launcher/workers/failure_record.h"

namespace narrowcast::launcher {

// "exit code 7" or "signal SIGKILL (Killed)".
std::string describe(const Ending& ending);

// The lines to print about an end; the first one says it all. None for success.
std::vector<std::string> describe_end(const GroupEnd& end);

}  // namespace narrowcast::launcher

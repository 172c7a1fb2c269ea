// Whether a process that a test has seen still runs.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

namespace narrowcast::testing {

// A process that has ended counts as gone before its parent reaps it: process 1 may take its time.
inline bool is_running(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  if (!std::getline(file, stat)) {
    return false;
  }
  const std::string state = stat.substr(stat.rfind(')'), 3);
  return state != ") Z" && state != ") X";
}

}  // namespace narrowcast::testing

#include "trainer/launcher/posix/process_list.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace narrowcast::launcher {

std::vector<ProcessEntry> list_processes() {
  std::vector<ProcessEntry> found;
  std::error_code error;
  const std::filesystem::directory_iterator processes("/proc", error);
  TORCH_CHECK_VALUE(!error, "/proc: cannot be read: ", error.message());
  for (const auto& entry : processes) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    if (!std::getline(file, stat)) {
      continue;  // It has just ended.
    }
    // "PID (NAME) STATE PPID PGRP ...", where NAME may contain any characters.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    char state = 0;
    ProcessEntry process{.pid = static_cast<pid_t>(std::stol(name))};
    fields >> state >> process.parent >> process.group;
    process.ended = state == 'Z';
    found.push_back(process);
  }
  return found;
}

std::vector<ProcessEntry> list_children() {
  std::vector<ProcessEntry> children = list_processes();
  std::erase_if(children, [](const ProcessEntry& process) { return process.parent != getpid(); });
  return children;
}

std::optional<bool> was_started_with(pid_t pid, const std::string& assignment) {
  const std::filesystem::path folder = "/proc/" + std::to_string(pid);
  const auto is_empty = [](std::istream& file) { return file.peek() == std::istream::traits_type::eof(); };
  std::ifstream environment(folder / "environ");
  if (is_empty(environment)) {
    if (std::ifstream arguments(folder / "cmdline"); is_empty(arguments)) {
      return std::nullopt;
    }
    environment = std::ifstream(folder / "environ");  // execve() may have ended in between.
  }
  for (std::string variable; std::getline(environment, variable, '\0');) {
    if (variable == assignment) {
      return true;
    }
  }
  return false;
}

}  // namespace narrowcast::launcher

#include "trainer/launcher/posix/process_list.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace narrowcast::launcher {
namespace {

// The value of a line "NAME:\tVALUE" of /proc/PID/status. Empty if the process has ended.
std::string status_of(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) {
      return line.substr(name.size() + 2);
    }
  }
  return "";
}

bool handles(pid_t pid, int signal) {
  const std::string state = status_of(pid, "State");
  const bool is_stopped = state.starts_with('T') || state.starts_with('t');
  const uint64_t handled = std::strtoull(status_of(pid, "SigCgt").c_str(), nullptr, 16);
  return !state.empty() && !is_stopped && ((handled >> (signal - 1)) & 1U) == 1U;
}

}  // namespace

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

bool group_handles(pid_t group, int signal) {
  return std::ranges::any_of(list_processes(), [&](const ProcessEntry& process) {
    return process.group == group && !process.ended && handles(process.pid, signal);
  });
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

// The processes of this machine, from /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace narrowcast::launcher {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  bool ended = false;  // not reaped yet
};

// Lists all processes, in no particular order. Throws c10::ValueError without /proc.
std::vector<ProcessEntry> list_processes();

// Lists the children of this process.
std::vector<ProcessEntry> list_children();

// Returns whether a process of that process group has a handler for `signal` and is not stopped.
bool group_handles(pid_t group, int signal);

// Returns whether a process was started with the variable `assignment`, "NAME=value". Returns false if it belongs to
// another user, and nothing while the process ends or is in execve(): it has neither arguments nor an environment then.
std::optional<bool> was_started_with(pid_t pid, const std::string& assignment);

}  // namespace narrowcast::launcher

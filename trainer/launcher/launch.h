// narrowcast-run without its flags: from a request to an exit code.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trainer/worker_env.h"

namespace narrowcast::launcher {

struct LaunchRequest {
  std::vector<std::string> command;  // a program's name or path, then its arguments
  std::string nproc_per_node = "1";  // a number, cpu, gpu or auto
  std::string master_addr = "127.0.0.1";
  int64_t master_port = 0;        // 0: any free one
  std::filesystem::path log_dir;  // empty: output is shown
  bool prefix = true;             // shown output has the rank before each line
  std::chrono::milliseconds shutdown_timeout{3000};
};

// Runs the job on this machine with `environment` as what workers inherit, and
// returns the launcher's exit code. `tell` prints a line for the user. Nothing the
// job started is left when this returns or throws. Throws c10::ValueError for a
// request that cannot be carried out, before any worker runs.
int launch(const LaunchRequest& request, const EnvironmentVariables& environment,
           const std::function<void(const std::string&)>& tell);

}  // namespace narrowcast::launcher

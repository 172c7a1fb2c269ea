// narrowcast-run without its flags: carries out a request and returns the exit code.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/launcher/job/job_rendezvous.h"
#include "trainer/launcher/job/line_prefix.h"
#include "trainer/launcher/job/numa_binding.h"
#include "trainer/launcher/job/recovery.h"
#include "trainer/launcher/job/supervisor.h"
#include "trainer/launcher/network/private_network.h"
#include "trainer/launcher/network/simulated_network.h"

namespace narrowcast::launcher {

// The request of a command line.
struct LaunchRequest {
  std::vector<std::string> command;  // a program's name or path, then its arguments
  std::string nproc_per_node = "1";  // a number, cpu, gpu or auto
  std::string role = "default";

  Recovery recovery = Recovery::kAuto;
  GroupRequest group;
  Isolation isolation = Isolation::kAuto;  // for a job on one node
  std::optional<NetworkShape> simulated;   // for a job on one node at the group's default endpoint
  std::filesystem::path secret_file;       // file of the job's secret, passed to workers; empty: none

  std::filesystem::path log_dir;                 // empty: a temporary folder
  std::string redirects = "0";                   // torchrun's syntax (launch_plan.h)
  std::string tee = "0";                         // torchrun's syntax
  std::string local_ranks_filter;                // local ranks whose output is shown, like "0,2"; empty: all
  bool prefix = true;                            // show line_prefix before each line
  std::string line_prefix = kDefaultLinePrefix;  // a template (line_prefix.h)
  std::vector<std::string> output_filters;       // OutputChoices::output_filters
  std::vector<std::string> error_filters;        // OutputChoices::error_filters

  bool virtual_local_rank = false;                // LaunchOptions::virtual_local_rank
  NumaBinding numa_binding = NumaBinding::kNone;  // the processors that workers may use

  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::chrono::milliseconds shutdown_timeout = SupervisorOptions().shutdown_timeout;
  std::chrono::milliseconds signal_timeout = SupervisorOptions().signal_timeout;
  std::chrono::milliseconds monitor_interval = SupervisorOptions().monitor_interval;
};

// Runs this node's part of the job and returns the launcher's exit code. Workers inherit `environment`. `tell` prints a
// line for the user. No process that the job started here is left when this returns or throws. Throws c10::ValueError
// for a request that cannot be carried out, before any worker runs.
int launch(const LaunchRequest& request, const EnvironmentVariables& environment,
           const std::function<void(const std::string&)>& tell);

}  // namespace narrowcast::launcher

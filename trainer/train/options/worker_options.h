// The options of every program that runs as a worker: its place in the job, and how it uses processors, GPUs and the
// network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/train/options/option.h"

namespace narrowcast::options {

// The process's place in the job, from the command line.
struct WorkerPlace {
  WorkerFlags flags = {};
  std::optional<std::string> interface = {};  // over which to reach other processes
};

std::vector<Option> place_options(WorkerPlace& place);

Option device_option(std::string& device);
Option threads_option(int64_t& threads);

// --timeout_seconds and --silence_seconds.
std::vector<Option> patience_options(ProcessGroupOptions& group);

// The options of the route between ranks: --levels, --node_size, --link_gbit, --link_us and --connections.
std::vector<Option> route_options(hooks::WireOptions& wire);

// The row of a hook's option. Its name is among hooks::named_options or OuterOptions::named. The function puts "With"
// and the hooks that accept the option before the help, and sets the role, which follows from the kind of option.
// Throws c10::ValueError for a name that is not an option of hooks.
Option hook_option(Option option);

// The role of options of that kind in a training that resumes.
Role role_of(hooks::OptionKind kind);

}  // namespace narrowcast::options

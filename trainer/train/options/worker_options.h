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

// What a command line says of the process's place in the job.
struct WorkerPlace {
  WorkerFlags flags = {};
  std::optional<std::string> interface = {};  // to reach other processes by
};

std::vector<Option> place_options(WorkerPlace& place);

Option device_option(std::string& device);
Option threads_option(int64_t& threads);

// --timeout_seconds and --silence_seconds.
std::vector<Option> patience_options(ProcessGroupOptions& group);

// The ways between ranks: --levels, --node_size, --link_gbit and --link_us.
std::vector<Option> route_options(hooks::WireOptions& wire);

// The row of a hook's option, whose name the hooks have (hooks::named_options, OuterOptions::named). It completes the
// help, "With" the hooks that take it, and the role, which follows from the kind of option. Throws c10::ValueError for
// a name that is not an option of hooks.
Option hook_option(Option option);

// Whether an option of that kind binds a training that resumes.
Role role_of(hooks::OptionKind kind);

}  // namespace narrowcast::options

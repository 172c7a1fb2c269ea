// The flags of every program that runs as a worker: its place in the job, and how it uses processors, GPUs and the
// network; and what the flags of several have in common.
#pragma once

#include <absl/flags/declare.h>

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"

ABSL_DECLARE_FLAG(int64_t, threads);
ABSL_DECLARE_FLAG(std::string, device);

namespace narrowcast {

// Returns the names of those that say a worker's place.
const std::vector<std::string>& worker_flags();

// The process's place, from its environment and from worker_flags(), which win. Throws as WorkerEnv::from_variables
// does, and c10::ValueError for an interface where there is nobody to talk to.
WorkerEnv read_worker_env(const program::CommandLine& line);

// The help of a flag that only hooks which take options of that kind take: "With" their names, and the text.
std::string with_hooks_that_take(hooks::OptionKind kind, const std::string& text);

// The same for the flag of a hook's option, which has its name.
std::string with_hooks_of(const std::string& option, const std::string& text);

// What --timeout_seconds and --silence_seconds say. Throws c10::ValueError for a silence that is too short for ranks to
// give a sign, or longer than the time-out, so that it has no effect.
void read_patience(const program::CommandLine& line, ProcessGroupOptions& options);

// Throws c10::ValueError naming the flag of a file that is given without a name.
void check_file(const program::CommandLine& line, const std::string& flag, const std::string& value);

// What --levels, --node_size, --link_gbit and --link_us say of the ways between ranks; the rest is as it is by itself.
// Throws c10::ValueError for levels that are none; the numbers are checked where they are used.
hooks::WireOptions read_route();

}  // namespace narrowcast

// What the launcher asks of the machine it runs on: processors, programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <narrowcast/worker_env.h>

namespace narrowcast::launcher {

// How many workers a launcher starts at most.
constexpr int64_t kMostWorkers = 4096;

// How many processors this process may use; asked only if the answer matters, as
// asking the CUDA driver can take a second.
struct Processors {
  std::function<int64_t()> cpus;
  std::function<int64_t()> gpus;  // those the driver shows, so CUDA_VISIBLE_DEVICES counts; 0 without a driver

  static Processors of_this_machine();
};

// The number of workers that --nproc_per_node=`text` asks for: a number of at least
// 1, "cpu", "gpu", or "auto" (the GPUs, else the CPUs). Throws c10::ValueError for
// anything else, and for "gpu" without one.
int64_t parse_nproc(const std::string& text, const Processors& processors);

// The path of the program that users call `name`. A name with a slash is a path;
// others are looked for in PATH, then in `own_folder`, where our own programs are:
// for names that begin with "narrowcast-" in the other order, so that the programs
// of one build go together. Throws c10::ValueError if there is none or it cannot be
// executed.
std::string find_program(const std::string& name, const EnvironmentVariables& environment,
                         const std::filesystem::path& own_folder);

// What this machine calls itself.
std::string host_name();

// The folder of the program that is running. Throws c10::ValueError where there is no /proc, by which the launcher also
// finds its workers' children.
std::filesystem::path own_folder();

}  // namespace narrowcast::launcher

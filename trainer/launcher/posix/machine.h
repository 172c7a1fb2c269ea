// What the launcher asks of the machine it runs on: processors, programs, and a folder for a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "ops/common/file_descriptor.h"

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

// The addresses on the PCI bus of the GPUs that the driver shows, like "0000:dc:00.0"; none without a driver.
std::vector<std::string> pci_addresses_of_gpus();

// The number of workers that --nproc_per_node=`text` asks for: a number of at least 1, "cpu", "gpu", or "auto" (the
// GPUs, else the CPUs). Throws c10::ValueError for anything else, and for "gpu" without one.
int64_t parse_nproc(const std::string& text, const Processors& processors);

// The path of the program that users call `name`. A name with a slash is a path; others are looked for in PATH, then in
// `own_folder`, where our own programs are: for names that begin with "narrowcast-" in the other order, so that the
// programs of one build go together. Throws c10::ValueError if there is none or it cannot be executed.
std::string find_program(const std::string& name, const EnvironmentVariables& environment,
                         const std::filesystem::path& own_folder);

// What this machine calls itself.
std::string host_name();

// The folder of the program that is running. Throws c10::ValueError where there is no /proc, by which the launcher also
// finds its workers' children.
std::filesystem::path own_folder();

// The folder of one run, which holds what its workers write for the launcher.
class RunFolder {
 public:
  enum class Fate { kKept, kTemporary };

  // A new folder named after `run_id` in `log_dir`, which is made if need be, or without one in the folder for
  // temporary files that `environment` names. A temporary one goes with this object; what launchers of this user that
  // were killed left there goes now. Throws c10::ValueError if it cannot be made.
  RunFolder(const std::filesystem::path& log_dir, const std::string& run_id, Fate fate,
            const EnvironmentVariables& environment);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
  FileDescriptor lock_;  // of a temporary one, for as long as this process lives
};

// A name for a run that no other run on this machine has: the time and this process's id.
std::string new_run_id();

}  // namespace narrowcast::launcher

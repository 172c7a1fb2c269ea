// Properties of this machine that the launcher needs: processors, programs, and a folder for a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "ops/common/file_descriptor.h"

namespace narrowcast::launcher {

// Maximum number of workers of a launcher.
constexpr int64_t kMostWorkers = 4096;

// Numbers of processors that this process may use. They are computed on demand, because the CUDA driver may take a
// second to answer.
struct Processors {
  std::function<int64_t()> cpus;
  std::function<int64_t()> gpus;  // by the driver, which respects CUDA_VISIBLE_DEVICES; 0 without a driver

  static Processors of_this_machine();
};

// Returns the PCI addresses of the GPUs that the driver shows, like "0000:dc:00.0"; none without a driver.
std::vector<std::string> pci_addresses_of_gpus();

// Parses --nproc_per_node=`text` into a number of workers: a number from 1 to kMostWorkers, "cpu", "gpu", or "auto"
// (the GPUs, else the CPUs). Throws c10::ValueError for anything else, and for "gpu" without a GPU.
int64_t parse_nproc(const std::string& text, const Processors& processors);

// Returns the path of the program `name`. A name with a slash is a path. Other names are searched in PATH, then in
// `own_folder`, which contains our programs. For names that begin with "narrowcast-", `own_folder` comes first, so that
// the programs of one build are used together. Throws c10::ValueError if there is no such program or it cannot be
// executed.
std::string find_program(const std::string& name, const EnvironmentVariables& environment,
                         const std::filesystem::path& own_folder);

// Returns this machine's host name.
std::string host_name();

// Returns the folder of the running program. Throws c10::ValueError without /proc, which the launcher also needs to
// find its workers' children.
std::filesystem::path own_folder();

// The folder of one run, for files that its workers write.
class RunFolder {
 public:
  enum class Fate { kKept, kTemporary };

  // Makes a new folder named after `run_id` in `log_dir`, which is made if necessary. If `log_dir` is empty, the folder
  // is in the folder for temporary files that `environment` names. A temporary folder is removed with this object.
  // Temporary folders of this user's launchers that were killed are removed now. Throws c10::ValueError if the folder
  // cannot be created.
  RunFolder(const std::filesystem::path& log_dir, const std::string& run_id, Fate fate,
            const EnvironmentVariables& environment);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
  FileDescriptor lock_;  // of a temporary folder; held until this process ends
};

// Returns a name for a run that is unique on this machine: the time and this process's id.
std::string new_run_id();

}  // namespace narrowcast::launcher

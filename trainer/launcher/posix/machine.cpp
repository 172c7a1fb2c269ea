#include "trainer/launcher/posix/machine.h"

#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <sstream>
#include <vector>

namespace narrowcast::launcher {
namespace {

// Asked through the driver's own library: linking the CUDA runtime for this would
// make the launcher slow to start.
int64_t count_gpus() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // Never closed: it may have started threads.
  if (driver == nullptr) {
    return 0;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int gpus = 0;
  const bool known = init != nullptr && count != nullptr && init(0) == 0 && count(&gpus) == 0;
  return known ? gpus : 0;
}

int64_t count_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  return sched_getaffinity(0, sizeof(usable), &usable) == 0 ? CPU_COUNT(&usable) : sysconf(_SC_NPROCESSORS_ONLN);
}

bool is_executable_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::filesystem::path> search_path(const EnvironmentVariables& environment) {
  std::vector<std::filesystem::path> folders;
  const auto path = environment.find("PATH");
  std::istringstream entries(path == environment.end() ? "/usr/bin:/bin" : path->second);
  for (std::string folder; std::getline(entries, folder, ':');) {
    folders.emplace_back(folder.empty() ? "." : folder);
  }
  return folders;
}

}  // namespace

Processors Processors::of_this_machine() { return {count_cpus, count_gpus}; }

int64_t parse_nproc(const std::string& text, const Processors& processors) {
  if (text == "cpu") {
    return processors.cpus();
  }
  if (text == "gpu" || text == "auto") {
    const int64_t gpus = processors.gpus();
    TORCH_CHECK_VALUE(gpus > 0 || text == "auto", "--nproc_per_node=gpu: this machine shows no GPU");
    return gpus > 0 ? gpus : processors.cpus();
  }
  int64_t number = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(text, &number) && number >= 1 && number <= kMostWorkers, "--nproc_per_node=", text,
                    ": must be a number from 1 to ", kMostWorkers, ", auto, cpu or gpu");
  return number;
}

std::string find_program(const std::string& name, const EnvironmentVariables& environment,
                         const std::filesystem::path& own_folder) {
  if (name.find('/') != std::string::npos) {
    TORCH_CHECK_VALUE(std::filesystem::exists(name), name, ": no such program");
    TORCH_CHECK_VALUE(is_executable_file(name), name, ": not an executable file");
    return name;
  }
  std::vector<std::filesystem::path> folders = search_path(environment);
  folders.insert(name.starts_with("narrowcast-") ? folders.begin() : folders.end(), own_folder);
  for (const std::filesystem::path& folder : folders) {
    if (!name.empty() && is_executable_file(folder / name)) {
      return folder / name;
    }
  }
  TORCH_CHECK_VALUE(!std::filesystem::exists(name) || name.empty(), name,
                    ": no such program in PATH; to run the file of this folder, write ./", name);
  TORCH_CHECK_VALUE(false, name.empty() ? "\"\"" : name, ": no such program in PATH or in ", own_folder.string());
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

std::filesystem::path own_folder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  TORCH_CHECK_VALUE(!error, "/proc/self/exe: cannot be read: ", error.message(), "; narrowcast-run needs /proc");
  return program.parent_path();
}

}  // namespace narrowcast::launcher

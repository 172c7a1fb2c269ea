#include "trainer/launcher/posix/machine.h"
#include "ops/common/file_descriptor.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <sstream>
#include <vector>

namespace narrowcast::launcher {
namespace {

// Prefix of the name of a run's temporary folder, and the file in it that its launcher locks.
constexpr const char* kPrefix = "narrowcast-run.";
constexpr const char* kLock = "launcher.lock";

// Opens the driver's library, to look up functions by name: linking the CUDA runtime would make the launcher slow to
// start. Returns null without a driver. The library is never closed, because it may have started threads.
void* gpu_driver() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }

int64_t count_gpus() {
  void* const driver = gpu_driver();
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

// Checks the same variables as the standard library. The error names the variable.
std::filesystem::path folder_for_temporary_files(const EnvironmentVariables& environment) {
  for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const std::string folder = text_or_empty(environment, name);
    if (!folder.empty()) {
      std::error_code ignored;
      TORCH_CHECK_VALUE(std::filesystem::is_directory(folder, ignored), name, "=", folder, ": is not a folder");
      return std::filesystem::absolute(folder);
    }
  }
  return "/tmp";
}

std::filesystem::path make_in_log_dir(const std::filesystem::path& log_dir, const std::string& run_id) {
  const std::filesystem::path parent = std::filesystem::absolute(log_dir);
  const std::filesystem::path path = parent / run_id;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  // Not create_directories, because a folder that exists already belongs to another run.
  TORCH_CHECK_VALUE(mkdir(path.c_str(), 0777) == 0, path.string(),
                    ": cannot be created: ", error ? error.message() : std::strerror(errno));
  return path;
}

std::filesystem::path make_among_temporary_files(const std::filesystem::path& parent, const std::string& run_id) {
  std::string path = (parent / (kPrefix + run_id + ".XXXXXX")).string();
  TORCH_CHECK_VALUE(mkdtemp(path.data()) != nullptr, path, ": cannot be created: ", std::strerror(errno));
  return path;
}

// Makes a file in `folder` that is locked until this process ends. The file gets its name only after it was locked. A
// file with this name and without a lock was therefore left behind.
FileDescriptor lock(const std::filesystem::path& folder) {
  const std::filesystem::path unlocked = folder / (std::string(kLock) + ".new");
  FileDescriptor file(open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.is_open() && flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    rename(unlocked.c_str(), (folder / kLock).c_str());
  }
  return file;
}

bool is_own(const FileDescriptor& file, mode_t type) {
  struct stat status {};
  return file.is_open() && fstat(file.get(), &status) == 0 && status.st_uid == geteuid() &&
         (status.st_mode & S_IFMT) == type;
}

// Removes `folder` if it belongs to this user and the launcher that locked a file in it is gone. Follows no links.
void remove_if_left_behind(const std::filesystem::path& folder) {
  const FileDescriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!is_own(opened, S_IFDIR)) {
    return;
  }
  const FileDescriptor file(openat(opened.get(), kLock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (is_own(file, S_IFREG) && flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
}

void remove_leftovers(const std::filesystem::path& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kPrefix)) {
      remove_if_left_behind(entry->path());
    }
  }
}

}  // namespace

Processors Processors::of_this_machine() { return {count_cpus, count_gpus}; }

std::vector<std::string> pci_addresses_of_gpus() {
  std::vector<std::string> addresses;
  for (int gpu = 0; gpu < count_gpus(); ++gpu) {
    const auto address_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(gpu_driver(), "cuDeviceGetPCIBusId"));
    char address[32] = {};
    TORCH_CHECK_VALUE(address_of != nullptr && address_of(address, sizeof(address), gpu) == 0,
                      "the driver does not show ", "the PCI address of GPU ", gpu);
    addresses.push_back(absl::AsciiStrToLower(address));
  }
  return addresses;
}

int64_t parse_nproc(const std::string& text, const Processors& processors) {
  if (text == "cpu") {
    return processors.cpus();
  }
  if (text == "gpu" || text == "auto") {
    const int64_t gpus = processors.gpus();
    TORCH_CHECK_VALUE(gpus > 0 || text == "auto", "--nproc_per_node=gpu: this machine has no usable GPU");
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
  TORCH_CHECK_VALUE(!error, "/proc/self/exe: cannot be read: ", error.message());
  return program.parent_path();
}

RunFolder::RunFolder(const std::filesystem::path& log_dir, const std::string& run_id, Fate fate,
                     const EnvironmentVariables& environment)
    : temporary_(fate == Fate::kTemporary) {
  if (!log_dir.empty()) {
    path_ = make_in_log_dir(log_dir, run_id);
    return;
  }
  const std::filesystem::path parent = folder_for_temporary_files(environment);
  remove_leftovers(parent);
  path_ = make_among_temporary_files(parent, run_id);
  if (temporary_) {
    lock_ = lock(path_);
  }
}

RunFolder::~RunFolder() {
  if (temporary_) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

std::string new_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::ostringstream id;
  id << std::put_time(&local, "%Y%m%d-%H%M%S-") << getpid();
  return id.str();
}

}  // namespace narrowcast::launcher

#include "trainer/launcher/posix/machine.h"

#include <absl/strings/numbers.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <memory>
#include <sstream>
#include <vector>

namespace narrowcast::launcher {
namespace {

constexpr int64_t kMostWorkers = 4096;

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

bool bind_to(const Descriptor& socket, const sockaddr* address, socklen_t length) {
  return bind(socket.get(), address, length) == 0;
}

// Bound as the store's server will be: to all addresses of IPv6 and IPv4, else of IPv4 alone.
Descriptor bind_everywhere(int64_t port) {
  const int on = 1;
  const int off = 0;
  const auto number = htons(static_cast<uint16_t>(port));
  Descriptor six(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (six) {
    setsockopt(six.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(six.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = number;
    if (bind_to(six, reinterpret_cast<const sockaddr*>(&address), sizeof(address))) {
      return six;
    }
    if (errno == EADDRINUSE || errno == EACCES) {
      return Descriptor();
    }
  }
  Descriptor four(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(four.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = number;
  return bind_to(four, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ? std::move(four) : Descriptor();
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

std::filesystem::path own_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

RunFolder::RunFolder(const std::filesystem::path& log_dir, const std::string& run_id) : temporary_(log_dir.empty()) {
  std::error_code error;
  const std::filesystem::path parent =
      temporary_ ? std::filesystem::temp_directory_path() : std::filesystem::absolute(log_dir);
  path_ = parent / ((temporary_ ? "narrowcast-run." : "") + run_id);
  std::filesystem::create_directories(parent, error);
  // Not create_directories: a folder that is there already is somebody else's.
  TORCH_CHECK_VALUE(mkdir(path_.c_str(), temporary_ ? 0700 : 0777) == 0, path_.string(),
                    ": cannot be made: ", error ? error.message() : std::strerror(errno));
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

void check_own_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  TORCH_CHECK_VALUE(error == 0, "--master_addr=", address, ": ", gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const Descriptor probe(socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && bind_to(probe, entry->ai_addr, entry->ai_addrlen)) {
      return;
    }
  }
  TORCH_CHECK_VALUE(false, "--master_addr=", address, ": not an address of this machine, where rank 0 runs");
}

PortReservation::PortReservation(int64_t port) {
  TORCH_CHECK_VALUE(port >= 0 && port <= 65535, "--master_port=", port, ": must be from 0 to 65535");
  socket_ = bind_everywhere(port);
  TORCH_CHECK_VALUE(socket_, "--master_port=", port, ": cannot be used: ", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  TORCH_CHECK(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0,
              "getsockname: ", std::strerror(errno));
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

}  // namespace narrowcast::launcher

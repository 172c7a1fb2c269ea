#include "trainer/launcher/network/private_network.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "trainer/launcher/posix/child_process.h"

namespace narrowcast::launcher {
namespace {

// Our programs that only connect to each other.
constexpr std::array kProgramsOfOurs = {"narrowcast-train", "narrowcast-bench"};

// Flags and variables that name an interface, or may do so.
constexpr std::array kFlagsOfInterfaces = {"interface", "master_addr", "flagfile", "fromenv", "tryfromenv"};
constexpr std::array kVariablesOfInterfaces = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"};

// Returns whether an argument is "--NAME" or "-NAME", with or without a value.
bool is_flag(std::string_view argument, std::string_view name) {
  const size_t dashes = std::min(argument.find_first_not_of('-'), argument.size());
  const std::string_view rest = argument.substr(dashes);
  return (dashes == 1 || dashes == 2) && rest.substr(0, rest.find('=')) == name;
}

// The steps below return 0 or an errno. A child process runs them first, so they must not allocate memory.

int write_text(const char* path, std::string_view text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) {
    return errno;
  }
  const bool is_written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = is_written ? 0 : errno;
  close(file);
  return error;
}

// Maps a user or group id to itself.
int keep_id(const char* path, unsigned id) {
  std::array<char, 32> text{};
  const int length = std::snprintf(text.data(), text.size(), "%u %u 1", id, id);
  return write_text(path, {text.data(), static_cast<size_t>(length)});
}

// A user who is not root must give up setgroups(2) before the gid_map can be written. Supplementary groups are kept.
int enter_with_own_user() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    return errno;
  }
  if (const int error = write_text("/proc/self/setgroups", "deny")) {
    return error;
  }
  if (const int error = keep_id("/proc/self/uid_map", user)) {
    return error;
  }
  return keep_id("/proc/self/gid_map", group);
}

int bring_loopback_up() {
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (any < 0) {
    return errno;
  }
  ifreq loopback{};
  std::strncpy(loopback.ifr_name, "lo", sizeof(loopback.ifr_name) - 1);
  int error = ioctl(any, SIOCGIFFLAGS, &loopback) == 0 ? 0 : errno;
  if (error == 0) {
    loopback.ifr_flags = static_cast<int16_t>(loopback.ifr_flags | IFF_UP);
    error = ioctl(any, SIOCSIFFLAGS, &loopback) == 0 ? 0 : errno;
  }
  close(any);
  return error;
}

int enter() {
  int error = unshare(CLONE_NEWNET) == 0 ? 0 : errno;  // Succeeds for root.
  if (error == EPERM) {
    error = enter_with_own_user();
  }
  return error == 0 ? bring_loopback_up() : error;
}

}  // namespace

Isolation parse_isolation(const std::string& flag, std::string_view text) {
  for (const auto& [name, value] :
       {std::pair{"auto", Isolation::kAuto}, {"on", Isolation::kOn}, {"off", Isolation::kOff}}) {
    if (text == name) {
      return value;
    }
  }
  TORCH_CHECK_VALUE(false, flag, "=", text, ": must be auto, on or off");
}

bool does_without_network(const std::vector<std::string>& command, const EnvironmentVariables& environment,
                          const std::filesystem::path& own_folder) {
  const std::filesystem::path program = command.front();
  std::error_code error;
  const bool is_ours = std::ranges::count(kProgramsOfOurs, program.filename().string()) > 0 &&
                       std::filesystem::equivalent(program.parent_path(), own_folder, error);
  const bool names_interface = std::any_of(command.begin() + 1, command.end(), [](const std::string& argument) {
    return std::ranges::any_of(kFlagsOfInterfaces, [&](const char* name) { return is_flag(argument, name); });
  });
  return is_ours && !names_interface && std::ranges::none_of(kVariablesOfInterfaces, [&](const char* name) {
           const auto found = environment.find(name);
           return found != environment.end() && !found->second.empty();
         });
}

// If the child succeeds, only the first step may still fail in this process, and only if there are other threads.
std::string enter_private_network() {
  const int in_child = run_in_child(&enter);
  const int error = in_child == 0 ? enter() : in_child;
  return error == 0 ? "" : error > 0 ? std::strerror(error) : "a child process for it did not end normally";
}

}  // namespace narrowcast::launcher

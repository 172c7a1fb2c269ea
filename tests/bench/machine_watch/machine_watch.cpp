#include "tests/bench/machine_watch/machine_watch.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace narrowcast::bench {
namespace {

// Shares of the processors that are small enough not to affect medians and best quarters.
constexpr double kMostByOthers = 0.05;
constexpr double kMostByHost = 0.02;
constexpr double kMostByQuota = 0.02;
constexpr int64_t kFewestProcessors = 2;  // Ranks and threads run in parallel.

int64_t ticks_per_second() { return ::sysconf(_SC_CLK_TCK); }

int64_t ticks_of(double seconds) { return static_cast<int64_t>(seconds * static_cast<double>(ticks_per_second())); }

int64_t ticks_of(const timeval& time) {
  return time.tv_sec * ticks_per_second() + time.tv_usec * ticks_per_second() / 1000000;
}

std::string percent(double share) { return std::to_string(static_cast<int>(100 * share + 0.5)) + "%"; }

double share_of(int64_t part, int64_t all) { return static_cast<double>(part) / static_cast<double>(all); }

int64_t own_ticks() {
  int64_t ticks = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    ::getrusage(who, &usage);
    ticks += ticks_of(usage.ru_utime) + ticks_of(usage.ru_stime);
  }
  return ticks;
}

// kFewestProcessors if unknown, as on a machine with more than the 1024 processors that fit the set.
int64_t usable_processors() {
  cpu_set_t processors;
  const bool known = ::sched_getaffinity(0, sizeof processors, &processors) == 0;
  return known ? CPU_COUNT(&processors) : kFewestProcessors;
}

// The longest wait of a group and its ancestors: a quota of an outer group stops the inner ones as well.
double throttled_seconds_of(const std::filesystem::path& mount, const std::string& group) {
  double longest = 0;
  for (std::filesystem::path path = group;; path = path.parent_path()) {
    std::ifstream file(mount / path.relative_path() / "cpu.stat");
    longest = std::max(longest, throttled_seconds(file));
    if (!path.has_relative_path()) return longest;
  }
}

// Lines are "number:controllers:path", without controllers in version 2.
double longest_throttling() {
  std::ifstream groups("/proc/self/cgroup");
  double longest = 0;
  for (std::string number, controllers, group; std::getline(groups, number, ':');) {
    std::getline(groups, controllers, ':');
    std::getline(groups, group);
    if (controllers.empty() || ("," + controllers + ",").find(",cpu,") != std::string::npos) {
      longest = std::max(longest, throttled_seconds_of("/sys/fs/cgroup/" + controllers, group));
    }
  }
  return longest;
}

}  // namespace

std::string disturbance_of(const ProcessorUse& use) {
  if (use.usable < kFewestProcessors) {
    return "this program may use " + std::to_string(use.usable) + " processor";
  }
  const int64_t of_program = use.elapsed * use.usable;
  if (of_program > 0 && share_of(use.throttled, of_program) > kMostByQuota) {
    return "a quota kept this program waiting for " + percent(share_of(use.throttled, of_program)) + " of its time";
  }
  const int64_t all = use.processes + use.host + use.idle;
  if (all <= 0) {
    return "";
  }
  if (share_of(use.processes - use.own, all) > kMostByOthers) {
    return "other processes took " + percent(share_of(use.processes - use.own, all)) + " of the processors";
  }
  const double host = share_of(use.host, all);
  return host > kMostByHost ? "the host took " + percent(host) + " of the processors" : "";
}

double throttled_seconds(std::istream& cpu_stat) {
  std::string name;
  for (double value = 0; cpu_stat >> name >> value;) {
    if (name == "throttled_usec") return value * 1e-6;
    if (name == "throttled_time") return value * 1e-9;
  }
  return 0;
}

MachineWatch::MachineWatch() : begin_(now()) {}

ProcessorUse MachineWatch::now() {
  std::ifstream file("/proc/stat");
  std::string name;
  int64_t user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft_interrupts = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> steal;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now().time_since_epoch();
  // Interrupts, including soft interrupts, belong to the processes that send and receive.
  return {.usable = usable_processors(),
          .elapsed = ticks_of(wall.count()),
          .processes = user + nice + system,
          .own = own_ticks(),
          .host = steal,
          .idle = idle + waiting + interrupts + soft_interrupts,
          .throttled = ticks_of(longest_throttling())};
}

std::string MachineWatch::disturbance() const {
  const ProcessorUse end = now();
  return disturbance_of({.usable = end.usable,
                         .elapsed = end.elapsed - begin_.elapsed,
                         .processes = end.processes - begin_.processes,
                         .own = end.own - begin_.own,
                         .host = end.host - begin_.host,
                         .idle = end.idle - begin_.idle,
                         .throttled = end.throttled - begin_.throttled});
}

int exit_code(bool met, const std::string& disturbance) {
  if (met || disturbance.empty()) {
    return met ? 0 : 1;
  }
  std::printf("NOT JUDGED: %s, and targets are for a quiet machine of at least %d processors.\n", disturbance.c_str(),
              static_cast<int>(kFewestProcessors));
  return 0;
}

}  // namespace narrowcast::bench

#include "tests/bench/machine_watch.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace narrowcast::bench {
namespace {

// Shares of the processors that are small enough to leave medians and best quarters alone.
constexpr double kMostByOthers = 0.05;
constexpr double kMostByHost = 0.02;

int64_t ticks_of(const timeval& time) {
  const int64_t per_second = ::sysconf(_SC_CLK_TCK);
  return time.tv_sec * per_second + time.tv_usec * per_second / 1000000;
}

std::string percent(double share) { return std::to_string(static_cast<int>(100 * share + 0.5)) + "%"; }

}  // namespace

MachineWatch::MachineWatch() : begin_(all_ticks()), own_begin_(own_ticks()) {}

MachineWatch::Ticks MachineWatch::all_ticks() {
  std::ifstream file("/proc/stat");
  std::string name;
  int64_t user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft_interrupts = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> steal;
  // Interrupts, soft ones as well, are for whoever sends and receives.
  return {.processes = user + nice + system, .host = steal, .idle = idle + waiting + interrupts + soft_interrupts};
}

int64_t MachineWatch::own_ticks() {
  int64_t ticks = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    ::getrusage(who, &usage);
    ticks += ticks_of(usage.ru_utime) + ticks_of(usage.ru_stime);
  }
  return ticks;
}

std::string MachineWatch::disturbance() const {
  const Ticks end = all_ticks();
  const auto processes = static_cast<double>(end.processes - begin_.processes);
  const auto host = static_cast<double>(end.host - begin_.host);
  const double all = processes + host + static_cast<double>(end.idle - begin_.idle);
  if (all <= 0) {
    return "";
  }
  const double others = (processes - static_cast<double>(own_ticks() - own_begin_)) / all;
  if (others > kMostByOthers) {
    return "other processes took " + percent(others) + " of the processors";
  }
  return host / all > kMostByHost ? "the host took " + percent(host / all) + " of the processors" : "";
}

int exit_code(bool met, const MachineWatch& watch) {
  const std::string disturbance = watch.disturbance();
  if (met || disturbance.empty()) {
    return met ? 0 : 1;
  }
  std::printf("NOT JUDGED: %s, and targets are for a quiet machine.\n", disturbance.c_str());
  return 0;
}

}  // namespace narrowcast::bench

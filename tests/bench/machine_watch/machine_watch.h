// Whether a benchmark's times are meaningful: how much of the machine the benchmark had.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

namespace narrowcast::bench {

// The use of processors over some time, in clock ticks, summed over processors unless noted.
struct ProcessorUse {
  int64_t usable = 2;     // number of processors that this program may run on
  int64_t elapsed = 0;    // wall time
  int64_t processes = 0;  // used by processes, on all processors of the machine
  int64_t own = 0;        // used by this program and its children
  int64_t host = 0;       // used by the host of a virtual machine
  int64_t idle = 0;       // not used
  int64_t throttled = 0;  // time that this program waited because of a quota
};

// Why times are not meaningful, e.g. "other processes took 31% of the processors". Empty on a machine with at least two
// processors of which others, the host and a quota took hardly anything.
std::string disturbance_of(const ProcessorUse& use);

// Seconds that a control group waited for its quota, from its cpu.stat: "throttled_usec N" in version 2 of groups,
// "throttled_time N" in nanoseconds in version 1. 0 if there is no such line.
double throttled_seconds(std::istream& cpu_stat);

// Watches this machine from the construction on: /proc/stat, and cpu.stat of this program's control groups. Files that
// do not exist count as no disturbance.
class MachineWatch {
 public:
  MachineWatch();

  // disturbance_of() for the time since construction. Children count as other processes until they have been waited
  // for.
  std::string disturbance() const;

 private:
  // Ticks since the machine started; `usable` is the current number.
  static ProcessorUse now();

  const ProcessorUse begin_;
};

// The exit code of a benchmark: 1 if a target was missed, else 0. On a disturbed machine it prints a line and returns
// 0: targets only apply to a quiet machine.
int exit_code(bool met, const std::string& disturbance);
inline int exit_code(bool met, const MachineWatch& watch) { return exit_code(met, watch.disturbance()); }

}  // namespace narrowcast::bench

// Whether a benchmark's times say something: how much of the machine it had.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

namespace narrowcast::bench {

// What became of processors over some time, in ticks of a clock, summed over processors unless said otherwise.
struct ProcessorUse {
  int64_t usable = 2;     // processors that this program may run on: a number
  int64_t elapsed = 0;    // on the wall
  int64_t processes = 0;  // taken by processes, on all of the machine's processors
  int64_t own = 0;        // of those, by this program and its children
  int64_t host = 0;       // taken by the host of a virtual machine
  int64_t idle = 0;       // taken by nobody
  int64_t throttled = 0;  // that a quota kept this program waiting
};

// Why times say little, e.g. "other processes took 31% of the processors"; empty on a machine of at least two
// processors of which others, the host and a quota took hardly anything.
std::string disturbance_of(const ProcessorUse& use);

// In seconds, what a control group's cpu.stat says of waiting for its quota: "throttled_usec N" in version 2 of groups,
// "throttled_time N" in nanoseconds in version 1. 0 if it says nothing.
double throttled_seconds(std::istream& cpu_stat);

// Watches this machine from the construction on: /proc/stat, and cpu.stat of the control groups that this program is
// in. Where there are none, nothing is known and nothing said.
class MachineWatch {
 public:
  MachineWatch();

  // As above, until now. Children count as others until they have been waited for.
  std::string disturbance() const;

 private:
  // Since the machine started, but for the number of processors.
  static ProcessorUse now();

  const ProcessorUse begin_;
};

// The exit code of a benchmark whose targets were met or not: 1 where one was missed. On a disturbed machine a line
// says so and the code is 0: targets are promises about a quiet one.
int exit_code(bool met, const std::string& disturbance);
inline int exit_code(bool met, const MachineWatch& watch) { return exit_code(met, watch.disturbance()); }

}  // namespace narrowcast::bench

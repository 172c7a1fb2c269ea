#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace narrowcast::bench {

// Whether this machine was this program's alone, from the construction on: what others took of its processors, other
// processes and, of a virtual machine, its host. Reads /proc/stat; where there is none, nothing is known and nothing
// said.
class MachineWatch {
 public:
  MachineWatch();

  // Why times say little, e.g. "other processes took 31% of the processors"; empty if they took hardly anything.
  // Children count as others until they have been waited for.
  std::string disturbance() const;

 private:
  // In ticks, of all processors and since their start: taken by processes, by the host, and by nobody.
  struct Ticks {
    int64_t processes = 0, host = 0, idle = 0;
  };
  static Ticks all_ticks();
  static int64_t own_ticks();

  const Ticks begin_;
  const int64_t own_begin_;
};

// The exit code of a benchmark whose targets were met or not: 1 where one was missed. On a disturbed machine the line
// says so and the code is 0: targets are promises about a quiet one.
int exit_code(bool met, const MachineWatch& watch);

}  // namespace narrowcast::bench

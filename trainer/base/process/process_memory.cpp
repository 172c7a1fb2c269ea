#include "trainer/base/process/process_memory.h"

#include <fstream>
#include <string>

namespace narrowcast::program {

// getrusage is unsuitable: its ru_maxrss includes the memory of the process that started this one.
int64_t peak_memory_bytes() {
  constexpr int64_t kKib = 1024;
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    if (name == "VmHWM:") {
      int64_t kib = 0;
      status >> kib;
      return status ? kKib * kib : 0;
    }
    std::string rest;
    std::getline(status, rest);
  }
  return 0;
}

}  // namespace narrowcast::program

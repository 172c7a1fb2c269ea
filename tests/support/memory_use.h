// The memory that this process uses.
#pragma once

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

// Defined by AddressSanitizer's runtime, which the process may have even if this file is compiled without it.
extern "C" __attribute__((weak)) void* __asan_region_is_poisoned(void* begin, size_t size);

namespace narrowcast::testing {

// Whether memory is given out by AddressSanitizer, which keeps what is freed.
inline bool keeps_freed_memory() { return __asan_region_is_poisoned != nullptr; }

// In bytes, without the pages of files. Memory that N processes map counts as an N-th in each of them. Freed memory
// that the allocator has kept is returned to the system first. 0 if the system does not have these numbers.
inline int64_t bytes_of_this_process() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  int64_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t number = 0;
    if (words >> name >> number && (name == "Pss_Anon:" || name == "Pss_Shmem:")) kilobytes += number;
  }
  return kilobytes * 1024;
}

}  // namespace narrowcast::testing

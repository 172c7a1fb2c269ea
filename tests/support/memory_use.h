// The memory that this process uses.
#pragma once

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

// Defined by the runtimes of AddressSanitizer and ThreadSanitizer, of which the process may have one even if this file
// is compiled without it.
extern "C" __attribute__((weak)) void* __asan_region_is_poisoned(void* begin, size_t size);
extern "C" __attribute__((weak)) void __tsan_acquire(void* address);

namespace narrowcast::testing {

// Whether a sanitizer gives out the memory: it keeps what is freed, and needs memory of its own for each byte.
inline bool has_sanitized_memory() { return __asan_region_is_poisoned != nullptr || __tsan_acquire != nullptr; }

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

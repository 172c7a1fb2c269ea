// Common parts of the programs that time kernels on a GPU: their flags, the search for a GPU, and a report relative to
// the rate of a device-to-device copy.
#pragma once

#include <absl/flags/declare.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/cuda/device_timer.h"

ABSL_DECLARE_FLAG(int64_t, mebibytes);
ABSL_DECLARE_FLAG(int64_t, rounds);

namespace narrowcast::bench {

// A copy of `bytes` in the device's memory. Both pointers must outlive it.
Work device_copy(void* to, const void* from, int64_t bytes);

// Lets all operations take --rounds turns and prints a line for each; the first one must be the copy. False if one
// misses its target.
bool measure(const std::string& title, std::vector<Work> all);

// The `main` of a program `name`: 0 if `body` returns that every target was met, 1 if not, 3 if there is no GPU.
int run_gpu_bench(const std::string& name, const std::string& summary, int argc, char** argv,
                  const std::function<bool()>& body);

}  // namespace narrowcast::bench

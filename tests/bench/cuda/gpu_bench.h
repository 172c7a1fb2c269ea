// What the programs share that time kernels on a GPU: their flags, the look for a
// GPU, and a report in parts of what a device-to-device copy moves.
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

// Lets the copy, which is the first, and all others take --rounds turns, and prints a line for each. False if one
// misses its target.
bool measure(const std::string& title, std::vector<Work> all);

// The `main` of a program `name`: 0 if `body` says that every target was met, 1 if not, 3 where there is no GPU.
int run_gpu_bench(const std::string& name, const std::string& summary, int argc, char** argv,
                  const std::function<bool()>& body);

}  // namespace narrowcast::bench

// The memory of this process.
#pragma once

#include <cstdint>

namespace narrowcast::program {

// The most bytes of memory that were resident so far, libraries and shared memory included, as Linux counts them
// (VmHWM); 0 if /proc cannot be read. Memory of GPUs is not counted.
int64_t peak_memory_bytes();

}  // namespace narrowcast::program

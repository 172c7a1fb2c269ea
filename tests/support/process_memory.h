// Changes the memory of another process, as faulty hardware would.
#pragma once

#include <sys/types.h>

#include <string>

namespace narrowcast::testing {

// Inverts the lowest bit of the middle byte of every occurrence of `bytes` in writable memory of the process, and
// returns the number of occurrences. The process should be stopped. Throws std::system_error if its memory cannot be
// written.
int flip_a_bit_of(const std::string& bytes, pid_t pid);

}  // namespace narrowcast::testing

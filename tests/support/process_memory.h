// The memory of another process, as faulty hardware would change it.
#pragma once

#include <sys/types.h>

#include <string>

namespace narrowcast::testing {

// Inverts the lowest bit of the middle byte wherever `bytes` stands in what the process can write, and returns how
// often that was. The process should stand still. Throws std::system_error where its memory cannot be written.
int flip_a_bit_of(const std::string& bytes, pid_t pid);

}  // namespace narrowcast::testing

// How many files, sockets among them, this process may have open.
#pragma once

#include <cstdint>

namespace narrowcast::network {

// All in all: RLIMIT_NOFILE, the soft one.
int64_t open_file_limit();

// How many more than now, as far as that matters: at most `enough`.
int64_t open_files_left(int64_t enough);

}  // namespace narrowcast::network

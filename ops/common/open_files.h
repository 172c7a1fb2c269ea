// The system's limit of open files.
#pragma once

#include <cstdint>

namespace narrowcast::network {

// The largest number of files, including sockets, that this process may have open: the soft RLIMIT_NOFILE.
int64_t open_file_limit();

// The number of files that it may still open; counting stops at `enough`.
int64_t open_files_left(int64_t enough);

}  // namespace narrowcast::network

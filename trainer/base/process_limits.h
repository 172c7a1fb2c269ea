// What the system allows this process, and what every program of the project changes about that.
#pragma once

#include <cstdint>

namespace narrowcast::network {

// All in all: RLIMIT_NOFILE, the soft one.
int64_t open_file_limit();

// How many more than now, as far as that matters: at most `enough`.
int64_t open_files_left(int64_t enough);

}  // namespace narrowcast::network

namespace narrowcast::program {

// From here on as many files may be open as the hard limit (RLIMIT_NOFILE) allows, and a write beyond RLIMIT_FSIZE is
// an error and no longer a signal (SIGXFSZ) that ends the process.
void set_up_process();

// Undoes it in a process that is about to become a program of somebody else's, which expects what it would find without
// us. System calls alone: it may be called between fork and exec.
void undo_process_setup();

}  // namespace narrowcast::program

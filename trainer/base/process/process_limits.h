// The system's limits for this process, and how every program of the project changes them.
#pragma once

#include <cstdint>

namespace narrowcast::network {

// The largest number of files, including sockets, that this process may have open: the soft RLIMIT_NOFILE.
int64_t open_file_limit();

// The number of files that it may still open; counting stops at `enough`.
int64_t open_files_left(int64_t enough);

}  // namespace narrowcast::network

namespace narrowcast::program {

// Raises the soft limit of open files to the hard limit (RLIMIT_NOFILE), and makes a write beyond RLIMIT_FSIZE an error
// instead of a signal (SIGXFSZ) that ends the process.
void set_up_process();

// Undoes set_up_process() in a process that is about to execute a foreign program, which expects the original settings.
// It makes only system calls, so it may be called between fork and exec.
void undo_process_setup();

}  // namespace narrowcast::program

// What the system allows this process, and what every program of the project changes about that.
#pragma once

#include <cstdint>

namespace narrowcast::network {

// The most files, sockets among them, that this process may have open: the soft RLIMIT_NOFILE.
int64_t open_file_limit();

// How many more it may open now; counting ends at `enough`.
int64_t open_files_left(int64_t enough);

}  // namespace narrowcast::network

namespace narrowcast::program {

// Lets as many files be open as the hard limit (RLIMIT_NOFILE) allows, and makes a write beyond RLIMIT_FSIZE an error
// instead of a signal (SIGXFSZ) that ends the process.
void set_up_process();

// Undoes it in a process that is about to become a program of somebody else's, which expects what it would find without
// us. System calls alone: it may be called between fork and exec.
void undo_process_setup();

}  // namespace narrowcast::program

// What every program of the project changes about its own process, before anything else.
#pragma once

namespace narrowcast::program {

// From here on as many files may be open as the hard limit (RLIMIT_NOFILE) allows, and a write beyond RLIMIT_FSIZE is
// an error and no longer a signal (SIGXFSZ) that ends the process.
void set_up_process();

// Undoes it in a process that is about to become a program of somebody else's, which expects what it would find without
// us. System calls alone: it may be called between fork and exec.
void undo_process_setup();

}  // namespace narrowcast::program

// The system's limits for this process, and how every program of the project changes them.
#pragma once

#include "ops/common/open_files.h"

namespace narrowcast::program {

// Raises the soft limit of open files to the hard limit (RLIMIT_NOFILE), and makes a write beyond RLIMIT_FSIZE an error
// instead of a signal (SIGXFSZ) that ends the process.
void set_up_process();

// Undoes set_up_process() in a process that is about to execute a foreign program, which expects the original settings.
// It makes only system calls, so it may be called between fork and exec.
void undo_process_setup();

}  // namespace narrowcast::program

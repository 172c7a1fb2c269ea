// The file in which a worker tells its launcher why it failed, in torchrun's format.
#pragma once

#include <filesystem>
#include <string>

#include "trainer/program/exit_code.h"

namespace narrowcast::program {

// Returns what run_main can call with a failure: it writes `file`, which the launcher named, whole or not at all. With
// an empty path it does nothing; if the file cannot be written, neither, because nobody is left to be told.
//
// torchrun blames the worker with the earliest time, in whole seconds. A worker that lost a peer notices before
// torchrun does that the peer has died, so it gives a time 2 seconds later than it is.
FailureListener error_file_writer(const std::filesystem::path& file);

}  // namespace narrowcast::program

// The file in which a failing process tells its launcher why, as torchrun and PyTorch's @record have it:
//
//     {"message": {"message": "M", "extraInfo": {"py_callstack": "text", "timestamp": "1700000000"}}}
//
// or, from older writers, {"message": "M"}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trainer/base/program/exit_code.h"

namespace narrowcast::program {

// The message of a worker's error file, as it is there (printable.h makes it fit for a terminal). Empty if the file is
// not there, is a link or no regular file, or holds something else; a failure is reported anyway.
std::string read_error_message(const std::filesystem::path& file);

// Writes `message`, at `seconds` since 1970, whole or not at all: false if it cannot be written, or if there is a
// link, a device, a pipe or a folder in its place, which stays. Bytes that are no UTF-8 are replaced.
bool write_error_file(const std::filesystem::path& file, const std::string& message, int64_t seconds);

// Returns what run_main can call with a failure: it writes `file`, which the launcher named. With an empty path it does
// nothing; if the file cannot be written, neither, because nobody is left to be told.
//
// torchrun blames the worker with the earliest time, in whole seconds. A worker that lost a peer notices before
// torchrun does that the peer has died, so it gives a time 2 seconds later than it is.
FailureListener error_file_writer(const std::filesystem::path& file);

}  // namespace narrowcast::program

// The file in which a failing process says why, as torchrun and PyTorch's @record have it:
//
//     {"message": {"message": "M", "extraInfo": {"py_callstack": "text", "timestamp": "1700000000"}}}
//
// or, from older writers, {"message": "M"}.
#pragma once

#include <filesystem>
#include <string>

namespace narrowcast::launcher {

// The message of a worker's error file. Empty if the file is not there or holds
// something else; a failure is reported anyway.
std::string read_error_message(const std::filesystem::path& error_file);

// Writes `message` for whoever started this launcher, at `seconds` since 1970: under a
// temporary name, then renamed. Throws c10::Error if that fails.
void write_error_file(const std::filesystem::path& error_file, const std::string& message, int64_t seconds);

}  // namespace narrowcast::launcher

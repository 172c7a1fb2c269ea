// The file in which a failing process writes the reason for its launcher, as with torchrun and PyTorch's @record:
//
//     {"message": {"message": "M", "extraInfo": {"py_callstack": "text", "timestamp": "1700000000"}}}
//
// Older writers write {"message": "M"}. "restart": false beside "message" means that a restart would fail in the same
// way, and "misfit": true that this process alone is to blame: it does not fit the ranks of a job that it joined.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace narrowcast::program {

// The content of an error file.
struct WorkerError {
  std::string message;     // as in the file: use printable() before it is shown on a terminal
  bool is_final = false;   // a restart would fail in the same way
  bool is_misfit = false;  // the others can go on without this process; only if is_final
};

// Reads a worker's error file. The message is empty if the file does not exist, is a link or not a regular file, or has
// other content. The failure is then reported without it.
WorkerError read_error_file(const std::filesystem::path& file);

// Writes an error with the time `seconds` since 1970, completely or not at all. Returns false if it cannot be written,
// or if there is a link, a device, a pipe or a folder in its place, which stays. Bytes that are not UTF-8 are replaced.
bool write_error_file(const std::filesystem::path& file, const WorkerError& error, int64_t seconds);

}  // namespace narrowcast::program

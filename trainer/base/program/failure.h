// How the project's programs end, which docs/reference/errors.md tells users, and how a failing one tells its launcher
// why.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace narrowcast::program {

// The code with which a program ends.
enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,    // the program ran and its answer is "no", e.g. gradients or replicas differ
  kWrongUse = 2,       // a flag, a name, a value or a combination of them; too little memory, too few open files
  kPeerFailed = 3,     // another rank or the network failed, or a collective timed out
  kCorruptInput = 4,   // a file or a message does not hold what it must
  kInternalError = 5,  // a bug: please report it
  kOutputFailed = 6,   // what the program had to leave behind could not be written, e.g. the disk is full
};

// What ended a program.
struct Failure {
  ExitCode code = kInternalError;
  std::string message;    // one line without the program's name, as printable() makes it: of text and bounded
  bool is_final = false;  // the same program would fail alike if it were started again
};

// Is told of a failure once it has been reported on standard error.
using FailureListener = std::function<void(const Failure&)>;

// Sets up the process (process_limits.h), runs `body` and returns its result. What it throws becomes one line
// "PROGRAM: message" on standard error and the exit code of its class. Whatever got into the message, it is printable
// and at most kLongestMessage bytes long (ops/common/text.h).
int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure = {});

// Reports a failure as run_program does, and returns the code with which to end the process at once: for a thread that
// knows that the others wait for what will not come. If run_program is reporting another failure, that one counts, and
// this never returns.
ExitCode report_failure(std::string_view program, const Failure& failure, const FailureListener& on_failure = {});

// The error file is where a failing process tells its launcher why, as torchrun and PyTorch's @record have it:
//
//     {"message": {"message": "M", "extraInfo": {"py_callstack": "text", "timestamp": "1700000000"}}}
//
// or, from older writers, {"message": "M"}. "restart": false beside "message" says that a restart would fail alike.

// What an error file tells.
struct WorkerError {
  std::string message;    // as it is there: printable() makes it fit for a terminal
  bool is_final = false;  // as Failure's
};

// What a worker's error file tells. Nothing if the file is not there, is a link or no regular file, or holds something
// else; a failure is reported anyway.
WorkerError read_error_file(const std::filesystem::path& file);

// Writes an error, at `seconds` since 1970, whole or not at all: false if it cannot be written, or if there is a
// link, a device, a pipe or a folder in its place, which stays. Bytes that are no UTF-8 are replaced.
bool write_error_file(const std::filesystem::path& file, const WorkerError& error, int64_t seconds);

// Returns what run_main can call with a failure: it writes `file`, which the launcher named. With an empty path it does
// nothing; if the file cannot be written, neither, because nobody is left to be told.
//
// torchrun blames the worker with the earliest time, in whole seconds. A worker that lost a peer notices before
// torchrun does that the peer has died, so it gives a time 2 seconds later than it is.
FailureListener error_file_writer(const std::filesystem::path& file);

}  // namespace narrowcast::program

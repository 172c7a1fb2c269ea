// How the project's programs end (docs/reference/errors.md), and how a failing program reports the reason to its
// launcher.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "trainer/base/process/error_file.h"

namespace narrowcast::program {

// The code with which a program ends.
enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,    // the program ran and a check failed, e.g. gradients or replicas differ
  kWrongUse = 2,       // a flag, a name, a value or a combination of them; too little memory, too few open files
  kPeerFailed = 3,     // another rank or the network failed, or a collective timed out
  kCorruptInput = 4,   // a file or a message has invalid content
  kInternalError = 5,  // a bug: please report it
  kOutputFailed = 6,   // a result of the program could not be written, e.g. the disk is full
};

// The reason why a program failed.
struct Failure {
  ExitCode code = kInternalError;
  std::string message;    // one line without the program's name, printable and bounded (printable())
  bool is_final = false;  // the program would fail in the same way if it were started again
};

// Called with a failure after it has been reported on standard error.
using FailureListener = std::function<void(const Failure&)>;

// Sets up the process (process_limits.h), runs `body` and returns its result. An exception of `body` becomes one line
// "PROGRAM: message" on standard error and the exit code of its class. The message is printable and at most
// kLongestMessage bytes long (ops/common/text.h), whatever text it contains.
int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure = {});

// Reports a failure as run_program does, and returns the exit code with which to end the process at once. It is for a
// thread that knows that the other threads wait for data that will not come. If run_program is already reporting
// another failure, this function never returns, and that failure counts.
ExitCode report_failure(std::string_view program, const Failure& failure, const FailureListener& on_failure = {});

// Returns a listener that writes a failure to the error file `file` (process/error_file.h), which the launcher named.
// With an empty path it does nothing. If the file cannot be written, it does nothing either, because nobody is left to
// be informed.
//
// torchrun blames the worker with the earliest time, in whole seconds. A worker that lost a peer notices the peer's
// death before torchrun does, so it writes a time 2 seconds later than the present one.
FailureListener error_file_writer(const std::filesystem::path& file);

}  // namespace narrowcast::program

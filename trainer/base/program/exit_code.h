// How the project's programs end. docs/errors.md tells users.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace narrowcast::program {

enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,    // the program ran and its answer is "no", e.g. gradients differ
  kWrongUse = 2,       // a flag, a name, a value or a combination of them; too little memory, too few open files
  kPeerFailed = 3,     // another rank or the network failed, or a collective timed out
  kCorruptInput = 4,   // a file or a message does not hold what it must
  kInternalError = 5,  // a bug: please report it
  kOutputFailed = 6,   // what the program had to leave behind could not be written, e.g. the disk is full
};

// What ended a program.
struct Failure {
  ExitCode code = kInternalError;
  std::string message;  // one line without the program's name, as printable() makes it: of text and bounded
};

// Is told of a failure once it has been reported on standard error.
using FailureListener = std::function<void(const Failure&)>;

// Sets up the process (process_setup.h), runs `body` and returns its result. What it throws becomes one line
// "PROGRAM: message" on standard error and the exit code of its class. Whatever got into the
// message, it is printable and at most kLongestMessage bytes long (trainer/base/files/printable.h).
int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure = {});

}  // namespace narrowcast::program

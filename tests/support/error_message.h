// The message of a thrown error, for comparison with the message that users see.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace narrowcast::testing {

// The message of the `Error` (a c10::Error) that `body` throws; other exceptions pass through.
template <class Error, class Body>
std::string error_message(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

}  // namespace narrowcast::testing

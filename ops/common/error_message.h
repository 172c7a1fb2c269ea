// The text of an error, for messages that contain it.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <string_view>

namespace narrowcast {

// The message of `error`, without the backtrace that LibTorch's errors carry.
inline std::string error_message(const std::exception& error) {
  const auto* const with_backtrace = dynamic_cast<const c10::Error*>(&error);
  return with_backtrace != nullptr ? with_backtrace->what_without_backtrace() : error.what();
}

// For messages of one line: LibTorch's messages continue with explanations or a backtrace.
inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// Calls body(). Returns the first line of the message that it threw; empty if it threw nothing.
template <class Body>
std::string failure_of(const Body& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    const std::string line = first_line(error_message(error));
    return line.empty() ? "an error without a message" : line;
  }
}

}  // namespace narrowcast

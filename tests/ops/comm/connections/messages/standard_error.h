// The text of a standard exception, as Gloo's works throw it.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace narrowcast::connections {

// Calls `body`, which must throw an Error.
template <class Error, class Body>
std::string standard_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace narrowcast::connections

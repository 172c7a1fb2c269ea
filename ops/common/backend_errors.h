// The error for a failed peer or network in all layers: one class, one sentence.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "ops/common/error_message.h"

namespace narrowcast {

// Throws the c10::DistBackendError "rank R: STEP failed: REASON".
[[noreturn]] inline void throw_backend_error(int64_t rank, const std::string& step, const std::string& reason) {
  TORCH_CHECK_WITH(DistBackendError, false, "rank ", rank, ": ", step, " failed: ", reason);
}

// Throws `error`, which is not null, as a DistBackendError. Other types than std::exception are rethrown unchanged.
[[noreturn]] inline void rethrow_as_backend_error(const std::exception_ptr& error, int64_t rank,
                                                  const std::string& step) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    throw_backend_error(rank, step, error_message(exception));
  }
}

// Returns body(), which only communicates with other ranks. Whatever it throws becomes an error of `step`.
template <class Body>
decltype(auto) with_backend_errors(int64_t rank, const std::string& step, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    rethrow_as_backend_error(std::current_exception(), rank, step);
  }
}

}  // namespace narrowcast

// One error class for whatever a failed peer or network makes LibTorch throw.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <narrowcast/current_step.h>
#include <narrowcast/export.h>

namespace narrowcast {

// Throws `error` again: as a one-line c10::DistBackendError "rank R: STEP failed:
// reason" if a peer or the network caused it, else as it is. Gloo's errors are
// plain std::runtime_errors and are known by their type's namespace.
[[noreturn]] NARROWCAST_EXPORT void rethrow_network_error(const std::exception_ptr& error, int64_t rank,
                                                          const std::string& step);

// Whether it is a time-out that `error`, as rethrow_network_error makes them, tells of.
NARROWCAST_EXPORT bool is_time_out(const std::exception& error);

// Returns body(), a step that talks to other ranks, e.g. a backward pass, with
// errors as rethrow_network_error makes them. `step` names it for the user, and for
// other ranks that ask what this one does.
template <class Body>
decltype(auto) with_network_errors(int64_t rank, const std::string& step, Body&& body) {
  const StepScope scope(rank, step);
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    rethrow_network_error(std::current_exception(), rank, step);
  }
}

}  // namespace narrowcast

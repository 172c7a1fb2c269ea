// What the ranks of this process wait for, and one error class for whatever a failed peer or network makes LibTorch
// throw.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// While it lives, `rank` is known to be in `step`, e.g. a collective. Steps may be nested; any thread may begin one.
class StepScope {
 public:
  // Begins the step of `rank`, one of this process's; errors name it, e.g. "backward pass".
  StepScope(int64_t rank, std::string step);
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  int64_t rank_;
  int64_t number_;  // among the steps that are known
};

// "has been in STEP for N s", about the step that began last, or "is in no collective".
std::string describe_current_step(int64_t rank);

// Throws `error` again: as a one-line c10::DistBackendError "rank R: STEP failed:
// reason" if a peer or the network caused it, else as it is. Gloo's errors are
// plain std::runtime_errors and are known by their type's namespace.
[[noreturn]] void rethrow_network_error(const std::exception_ptr& error, int64_t rank, const std::string& step);

// Whether it is a time-out that `error`, as rethrow_network_error makes them, tells of.
bool is_time_out(const std::exception& error);

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

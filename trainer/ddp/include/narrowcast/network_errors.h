// The steps in which the ranks of this process wait for others, and one error class for all that LibTorch throws when a
// peer or the network fails.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <narrowcast/export.h>

namespace NARROWCAST_EXPORT narrowcast {

// Records during its lifetime that `rank` is in `step`, e.g. a collective. Steps may be nested; any thread may begin
// one.
class StepScope {
 public:
  // Begins the step of `rank`, which is a rank of this process. Errors name the step, e.g. "backward pass".
  StepScope(int64_t rank, std::string step);
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  int64_t rank_;
  int64_t number_;  // among the steps that are known
};

// "has been in STEP for N s", about the step that began last, or "is not in a collective".
std::string describe_current_step(int64_t rank);

// Throws `error` again. If a peer or the network caused it, it becomes a one-line c10::DistBackendError "rank R: STEP
// failed: reason"; other errors are unchanged. Gloo's errors are plain std::runtime_errors and are recognised by the
// namespace of their type.
[[noreturn]] void rethrow_network_error(const std::exception_ptr& error, int64_t rank, const std::string& step);

// Whether `error`, made by rethrow_network_error, is a time-out.
bool is_time_out(const std::exception& error);

// Returns body(), a step that communicates with other ranks, e.g. a backward pass, with errors as rethrow_network_error
// makes them. `step` names it for the user, and for other ranks that ask what this rank does.
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

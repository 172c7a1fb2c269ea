// What the ranks of this process are waiting for, so that they can say so to others.
#pragma once

#include <cstdint>
#include <string>

#include <narrowcast/export.h>

namespace narrowcast {

// While it lives, `rank` is known to be in `step`, e.g. a collective. Steps may be nested; any thread may begin one.
class NARROWCAST_EXPORT StepScope {
 public:
  StepScope(int64_t rank, std::string step);
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  int64_t rank_;
  int64_t number_;  // among the steps that are known
};

// "has been in STEP for N s", about the step that began last, or "is in no collective".
NARROWCAST_EXPORT std::string describe_current_step(int64_t rank);

}  // namespace narrowcast

#include "ops/common/backend_errors.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

template <class Error>
std::string message_of(const Error& thrown) {
  return testing::error_message<c10::DistBackendError>(
      [&] { with_backend_errors(3, "all-reduce of hook int8", [&] { throw thrown; }); });
}

TEST(BackendErrors, ReturnWhatTheBodyReturns) {
  int value = 1;
  EXPECT_EQ(&with_backend_errors(0, "step", [&]() -> int& { return value; }), &value);
}

TEST(BackendErrors, NameTheRankAndTheStep) {
  EXPECT_EQ(message_of(std::runtime_error("a peer is gone")), "rank 3: all-reduce of hook int8 failed: a peer is gone");
}

TEST(BackendErrors, LeaveOutTheBacktrace) {
  EXPECT_EQ(message_of(c10::ValueError({__func__, __FILE__, __LINE__}, "a peer\nis gone")),
            "rank 3: all-reduce of hook int8 failed: a peer\nis gone");
}

TEST(BackendErrors, LetWhatIsNoExceptionPass) {
  EXPECT_THROW(rethrow_as_backend_error(std::make_exception_ptr(7), 0, "step"), int);
}

}  // namespace
}  // namespace narrowcast

#include "ops/common/error_message.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

namespace narrowcast {
namespace {

TEST(ErrorMessage, LeavesOutTheBacktrace) {
  const c10::ValueError error({__func__, __FILE__, __LINE__}, "x must be\na number");
  EXPECT_EQ(narrowcast::error_message(error), "x must be\na number");
  EXPECT_EQ(narrowcast::error_message(std::runtime_error("x must be\na number")), "x must be\na number");
}

TEST(ErrorMessage, HasAFirstLine) {
  EXPECT_EQ(first_line("x must be\na number\n"), "x must be");
  EXPECT_EQ(first_line("x"), "x");
  EXPECT_EQ(first_line(""), "");
  EXPECT_EQ(first_line("\nx"), "");
}

TEST(FailureOf, IsOneLineOfWhateverWasThrown) {
  EXPECT_EQ(failure_of([] {}), "");
  EXPECT_EQ(failure_of([] { throw std::system_error(ENOMEM, std::generic_category(), "mmap"); }),
            "mmap: Cannot allocate memory");
  EXPECT_EQ(failure_of([] { TORCH_CHECK_VALUE(false, "x must be\na number"); }), "x must be");
  EXPECT_NE(failure_of([] { throw std::bad_alloc(); }), "");
  EXPECT_NE(failure_of([] { throw std::runtime_error(""); }), "") << "a failure all the same";
}

}  // namespace
}  // namespace narrowcast

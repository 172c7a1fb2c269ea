#include "ops/error_message.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace narrowcast

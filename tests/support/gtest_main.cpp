// The main function of the gtest programs. It ends the process without the destructors of static objects, as the
// project's programs do (trainer/base/program/flush_streams.h). Sanitizers look for leaks after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/sanitized.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  const int code = RUN_ALL_TESTS();
  if (narrowcast::test::kSanitized) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}

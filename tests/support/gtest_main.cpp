// The main function of the gtest programs. It ends the process without the destructors of static objects, as the
// project's programs do (trainer/base/program/flush_streams.h). Sanitizers look for leaks after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/sanitized.h"

int main(int argc, char** argv) {
  // c10d asks for the name of each address that it connects to, 127.0.0.1 as well. A DNS server that does not answer
  // would otherwise take 5 s of a test's time limits.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", /*overwrite=*/0);
  ::testing::InitGoogleMock(&argc, argv);
  const int code = RUN_ALL_TESTS();
  if (narrowcast::test::kSanitized) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}

#include "trainer/base/program/flush_streams.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "tests/support/temporary_folder.h"

namespace narrowcast::program {
namespace {

TEST(FlushStreams, LeavesNothingThatTheEndOfTheProcessWouldLose) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "output";
  EXPECT_EXIT(
      {
        if (std::freopen(file.c_str(), "w", stdout) == nullptr) std::_Exit(8);
        std::printf("printed, ");
        std::cout << "streamed";
        flush_streams();
        std::_Exit(7);
      },
      ::testing::ExitedWithCode(7), "");
  std::ifstream output(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(output), {}), "printed, streamed");
}

}  // namespace
}  // namespace narrowcast::program

#include "trainer/base/open_files.h"

#include <gtest/gtest.h>

#include "tests/support/loopback_socket.h"
#include "tests/support/open_file_limit.h"

namespace narrowcast::network {
namespace {

TEST(OpenFiles, AreLimited) {
  const testing::OpenFileLimit limit(100);
  EXPECT_EQ(open_file_limit(), 100);
}

TEST(OpenFiles, LeftAreCountedNoFurtherThanTheyMatter) {
  EXPECT_EQ(open_files_left(0), 0);
  EXPECT_EQ(open_files_left(3), 3);
}

TEST(OpenFiles, LeftAreFewerWhereSomeAreOpen) {
  const testing::OpenFileLimit limit(100);
  const int64_t left = open_files_left(1000);
  EXPECT_LT(left, 100);  // standard input, output and error at the least
  const ListeningSocket socket = testing::loopback_socket();
  EXPECT_EQ(open_files_left(1000), left - 1);
}

TEST(OpenFiles, ThoseBeyondTheLimitTakeNoPlace) {
  const ListeningSocket socket = testing::loopback_socket();
  const testing::OpenFileLimit limit(1);
  EXPECT_LE(open_files_left(1000), 1);
}

}  // namespace
}  // namespace narrowcast::network

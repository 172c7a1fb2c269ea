#include "ops/common/open_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "tests/support/open_file_limit.h"

namespace narrowcast::network {
namespace {

// A descriptor with the lowest free number that is not less than `least`.
FileDescriptor descriptor_from(int least) { return FileDescriptor(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, least)); }

TEST(OpenFiles, AreLimited) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(open_file_limit(), limit.rlim_cur > INT_MAX ? INT_MAX : static_cast<int64_t>(limit.rlim_cur));
  const testing::OpenFileLimit lower(100);
  EXPECT_EQ(open_file_limit(), 100);
}

TEST(OpenFiles, LeftAreCountedNoFurtherThanTheyMatter) {
  EXPECT_EQ(open_files_left(0), 0);
  EXPECT_EQ(open_files_left(3), 3);
}

TEST(OpenFiles, LeftAreFewerWhereSomeAreOpen) {
  const testing::OpenFileLimit limit(100);
  const int64_t left = open_files_left(1000);
  EXPECT_LT(left, 100);  // At least standard input, output and error are open.
  FileDescriptor file = descriptor_from(0);
  ASSERT_LT(file.get(), 100);
  EXPECT_EQ(open_files_left(1000), left - 1);
  file.close();
  EXPECT_EQ(open_files_left(1000), left);
}

// The system limits the numbers of descriptors, not how many there are.
TEST(OpenFiles, ThoseBeyondTheLimitTakeNoPlace) {
  const testing::OpenFileLimit limit(300);
  FileDescriptor beyond = descriptor_from(200);
  ASSERT_GE(beyond.get(), 200);
  const testing::OpenFileLimit lower(100);
  const int64_t left = open_files_left(1000);
  beyond.close();
  EXPECT_EQ(open_files_left(1000), left);
}

TEST(OpenFiles, AreAllThatTheSystemGives) {
  const testing::OpenFileLimit limit(100);
  std::vector<FileDescriptor> files;
  const int64_t left = open_files_left(1000);
  for (int64_t i = 0; i < left; ++i) {
    files.push_back(descriptor_from(0));
    ASSERT_TRUE(files.back().is_open()) << i << " of " << left;
  }
  EXPECT_FALSE(descriptor_from(0).is_open());
  EXPECT_EQ(open_files_left(1), 0);
}

}  // namespace
}  // namespace narrowcast::network

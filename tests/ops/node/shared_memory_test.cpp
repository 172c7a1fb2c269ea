#include "ops/node/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <system_error>

#include "tests/support/file_size_limit.h"

namespace narrowcast::node {
namespace {

Descriptor copy_of(const Descriptor& descriptor) { return Descriptor(::dup(descriptor.number())); }

TEST(SharedMemory, IsSeenByWhoeverMapsItsDescriptor) {
  const SharedMemory memory = SharedMemory::create(10'000);
  EXPECT_EQ(memory.bytes(), 10'000);
  EXPECT_EQ(memory.data()[9999], std::byte{0});
  memory.data()[9999] = std::byte{42};
  const SharedMemory other = SharedMemory::open(copy_of(memory.descriptor()));
  EXPECT_NE(other.data(), memory.data());
  EXPECT_EQ(other.bytes(), 10'000);
  EXPECT_EQ(other.data()[9999], std::byte{42});
}

TEST(SharedMemory, CostsNothingUntilItIsWritten) {
  const SharedMemory memory = SharedMemory::create(int64_t{1} << 40);
  memory.data()[int64_t{1} << 39] = std::byte{1};
  struct stat status {};
  ASSERT_EQ(::fstat(memory.descriptor().number(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, int64_t{4} << 20) << "a huge page at most";
}

TEST(SharedMemory, IsOfThisUserAlone) {
  const SharedMemory memory = SharedMemory::create(1);
  struct stat status {};
  ASSERT_EQ(::fstat(memory.descriptor().number(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(status.st_nlink, 0U) << "it has no name";
}

// Or the process that reads it would end with SIGBUS.
TEST(SharedMemory, CannotBeResized) {
  const SharedMemory memory = SharedMemory::create(10'000);
  EXPECT_EQ(::ftruncate(memory.descriptor().number(), 1), -1);
  const Descriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.number(), 100), 0);
  EXPECT_THROW(SharedMemory::open(copy_of(unsealed)), std::system_error);
}

TEST(SharedMemory, SaysWhatTheSystemRefuses) {
  const testing::FileSizeLimit limit(1 << 20);
  try {
    SharedMemory::create(int64_t{1} << 30);
    ADD_FAILURE() << "more than the limit";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("1073741824 bytes (the size of files is limited to 1048576)"));
  }
}

}  // namespace
}  // namespace narrowcast::node

#include "ops/comm/node/shared_memory.h"
#include "ops/common/error_message.h"
#include "ops/common/file_descriptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "tests/support/file_size_limit.h"

namespace narrowcast::node {
namespace {

FileDescriptor copy_of(const FileDescriptor& descriptor) { return FileDescriptor(::dup(descriptor.get())); }

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
  ASSERT_EQ(::fstat(memory.descriptor().get(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, int64_t{4} << 20) << "a huge page at most";
}

TEST(SharedMemory, PagesAreAllocatedOnDemandOrBefore) {
  const SharedMemory memory = SharedMemory::create(int64_t{16} << 20);
  memory.allocate(int64_t{1} << 20, int64_t{8} << 20);
  memory.allocate(0, 0);
  struct stat status {};
  ASSERT_EQ(::fstat(memory.descriptor().get(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, int64_t{8} << 20);
  EXPECT_LT(status.st_blocks * 512, int64_t{13} << 20) << "a huge page at both ends at most";
  EXPECT_EQ(memory.data()[int64_t{2} << 20], std::byte{0});
  EXPECT_THROW(memory.allocate(0, int64_t{17} << 20), std::system_error) << "it cannot grow";
}

TEST(SharedMemory, MoreThanTheMachineHasIsAnError) {
  check_available(1);
  const int64_t bytes = int64_t{1} << 60;
  const std::string message = failure_of([&] { check_available(bytes); });
  EXPECT_THAT(message, ::testing::ContainsRegex("shared memory of 1152921504606846976 bytes \\([0-9]+ bytes are "
                                                "available\\)"));
}

TEST(SharedMemory, IsOfThisUserAlone) {
  const SharedMemory memory = SharedMemory::create(1);
  struct stat status {};
  ASSERT_EQ(::fstat(memory.descriptor().get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(status.st_nlink, 0U) << "it has no name";
}

// A resize would end the process that reads the memory with SIGBUS.
TEST(SharedMemory, CannotBeResized) {
  const SharedMemory memory = SharedMemory::create(10'000);
  EXPECT_EQ(::ftruncate(memory.descriptor().get(), 1), -1);
  const FileDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 100), 0);
  EXPECT_THROW(SharedMemory::open(copy_of(unsealed)), std::system_error);
}

// Calls body() on a thread with this filter of system calls. Returns whether the system allows such a filter.
template <size_t N, class Body>
bool with_filter(std::array<sock_filter, N>& filter, const Body& body) {
  const sock_fprog program{static_cast<uint16_t>(filter.size()), filter.data()};
  bool allowed = false;
  std::thread([&] {
    allowed =
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (allowed) body();
  }).join();
  return allowed;
}

// Filters memfd_create. With `refused` it fails with `error` if the flag MFD_NOEXEC_SEAL (8) is set, otherwise if that
// flag is missing.
template <class Body>
bool with_memfd_filter(bool refused, int error, const Body& body) {
  constexpr uint32_t kNoExecution = 8;
  const auto fails = static_cast<uint8_t>(refused ? 0 : 1);
  std::array<sock_filter, 6> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kNoExecution, fails, static_cast<uint8_t>(1 - fails)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  return with_filter(filter, body);
}

// The filter makes madvise fail, as it does for locked memory and on systems without MADV_REMOVE.
TEST(SharedMemory, StaysUsableWhereNothingCanBeGivenBack) {
  std::array<sock_filter, 6> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_REMOVE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const bool allowed = with_filter(filter, [] {
    const SharedMemory memory = SharedMemory::create(8192);
    memory.data()[4096] = std::byte{7};
    EXPECT_NE(::madvise(memory.data(), 4096, MADV_REMOVE), 0);
    memory.give_back(4096, 4096);
    EXPECT_EQ(memory.data()[4096], std::byte{7});
  });
  if (!allowed) GTEST_SKIP() << "the system allows no filter of its calls";
}

// With vm.memfd_noexec = 2, only files marked as never executable are allowed.
TEST(SharedMemory, IsNotForExecution) {
  const bool allowed = with_memfd_filter(false, EACCES, [] {
    EXPECT_LT(::memfd_create("test", MFD_CLOEXEC), 0);
    EXPECT_EQ(SharedMemory::create(100).bytes(), 100);
  });
  if (!allowed) GTEST_SKIP() << "the system allows no filter of its calls";
}

TEST(SharedMemory, IsMadeByKernelsThatDoNotKnowOfExecution) {
  const bool allowed = with_memfd_filter(true, EINVAL, [] { EXPECT_EQ(SharedMemory::create(100).bytes(), 100); });
  if (!allowed) GTEST_SKIP() << "the system allows no filter of its calls";
}

TEST(SharedMemory, SaysThatNoneCanBeMade) {
  const bool allowed =
      with_memfd_filter(true, EACCES, [] { EXPECT_THROW(SharedMemory::create(100), std::system_error); });
  if (!allowed) GTEST_SKIP() << "the system allows no filter of its calls";
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

TEST(LocalSocket, TellsWhoHasConnected) {
  const SocketName name = random_socket_name();
  const FileDescriptor listening = listen_locally(name);
  EXPECT_FALSE(accept_locally(listening).has_value());
  const FileDescriptor seven = connect_locally(name, 7);
  const FileDescriptor nine = connect_locally(name, 9);
  ASSERT_TRUE(seven.is_open() && nine.is_open());
  EXPECT_EQ(accept_locally(listening)->rank, 7);
  EXPECT_EQ(accept_locally(listening)->rank, 9);
  EXPECT_FALSE(accept_locally(listening).has_value());
}

TEST(LocalSocket, NobodyListensUnderAnotherName) {
  EXPECT_FALSE(connect_locally(random_socket_name(), 1).is_open());
  EXPECT_NE(random_socket_name(), random_socket_name());
}

TEST(LocalSocket, IsGoneWithItsProcess) {
  const SocketName name = random_socket_name();
  FileDescriptor listening = listen_locally(name);
  const FileDescriptor connection = connect_locally(name, 1);
  EXPECT_FALSE(is_closed(connection));
  listening.close();
  EXPECT_TRUE(is_closed(connection));
  EXPECT_FALSE(connect_locally(name, 1).is_open());
}

TEST(LocalSocket, NoticesTheEndOfTheOtherSide) {
  const SocketName name = random_socket_name();
  const FileDescriptor listening = listen_locally(name);
  FileDescriptor connection = connect_locally(name, 1);
  const auto accepted = accept_locally(listening);
  EXPECT_FALSE(is_closed(accepted->connection));
  connection.close();
  EXPECT_TRUE(is_closed(accepted->connection));
}

TEST(LocalSocket, HandsADescriptorOver) {
  const SocketName name = random_socket_name();
  const FileDescriptor listening = listen_locally(name);
  const FileDescriptor connection = connect_locally(name, 1);
  const auto accepted = accept_locally(listening);
  EXPECT_THROW(receive_descriptor(connection), std::system_error) << "nothing is there yet";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const FileDescriptor reading(ends[0]);
  {
    const FileDescriptor writing(ends[1]);
    send_descriptor(accepted->connection, writing);
  }
  const FileDescriptor received = receive_descriptor(connection);
  ASSERT_EQ(::write(received.get(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(reading.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

}  // namespace
}  // namespace narrowcast::node

// Strangers that connect to what a training listens at.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/listening_sockets.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::testing {
namespace {

using files::FileDescriptor;

constexpr int kStrangers = 1100;

// More than a process may have open by itself; false if it may not have so many.
bool may_open(rlim_t files) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < files) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, files);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// A connection on which `bytes` were sent; closed if nobody takes it.
FileDescriptor stranger_at(int64_t port, const std::string& bytes) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_connected = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  EXPECT_TRUE(is_connected) << "port " << port;
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  return socket;
}

// To each store and rank: some say nothing, some eight bytes, some more than that.
TEST(NarrowcastTrainStrangersTest, ChangeNothingWhileTheyStay) {
  if (!may_open(kStrangers + 100)) GTEST_SKIP() << "RLIMIT_NOFILE: no " << kStrangers << " connections";
  const EndlessRanks job(2, {"--hook=int8"});
  const std::vector<std::string> said{"", std::string("\x07\0\0\0\0\0\0\0", 8), std::string(8, '\xff'),
                                      std::string(5000, 'x')};
  std::vector<FileDescriptor> strangers;
  std::vector<int64_t> ports;
  for (const auto& rank : job.ranks) {
    for (const int64_t port : listening_ports_of(rank->pid())) ports.push_back(port);
  }
  ASSERT_GE(ports.size(), 3) << "the store, and Gloo in each rank";
  for (size_t i = 0; i < kStrangers; ++i) {
    strangers.push_back(stranger_at(ports[i % ports.size()], said[i / ports.size() % said.size()]));
  }
  RunningProgram& first = *job.ranks[0];
  // It tells of its steps about once a second.
  const auto train_on = [&] { first.wait_for_errors("step ", count_of("step ", first.errors()) + 4); };
  train_on();
  strangers.clear();
  train_on();
  for (const auto& rank : job.ranks) EXPECT_EQ(kill(rank->pid(), 0), 0);
}

}  // namespace
}  // namespace narrowcast::testing

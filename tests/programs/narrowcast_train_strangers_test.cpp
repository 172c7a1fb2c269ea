// Strangers that connect to a training's sockets.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "tests/programs/train_commands.h"
#include "tests/support/is_running.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::testing {
namespace {

constexpr int kStrangers = 1100;

// Allows this process more open files than it has by default; false if it may not have that many.
bool may_open(rlim_t files) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < files) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, files);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// A connection on which `bytes` were sent; closed if nobody accepts it.
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

// Waits until the job has made some progress.
void wait_for_steps_of(const EndlessRanks& job) {
  RunningProgram& first = *job.ranks[0];
  // It reports steps about once a second. The first report may be on its way already.
  first.wait_for_errors("step ", count_of("step ", first.errors()) + 2);
}

// Strangers at each store and rank: some send nothing, some eight bytes, some more.
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
  wait_for_steps_of(job);
  strangers.clear();
  wait_for_steps_of(job);
  for (const auto& rank : job.ranks) EXPECT_TRUE(is_running(rank->pid()));
}

// The largest value that a store accepts, and somewhat more.
constexpr size_t kLargestValue = size_t{8} << 20;
constexpr size_t kTooLarge = size_t{9} << 20;

network::TcpStorePtr stranger_in_the_store(const EndlessRanks& job) {
  return network::reach_tcp_store("127.0.0.1", job.port, kPatience);
}

void fill(const network::TcpStorePtr& store, int64_t number, size_t bytes = kLargestValue) {
  store->set("stranger/" + std::to_string(number), std::vector<uint8_t>(bytes, 'x'));
}

TEST(NarrowcastTrainStrangersTest, MayStoreWhatMemoryHolds) {
  constexpr int64_t kValues = 40;
  const EndlessRanks job(2, {"--hook=int8"});
  const network::TcpStorePtr stranger = stranger_in_the_store(job);
  for (int64_t value = 0; value < kValues; ++value) fill(stranger, value);
  wait_for_steps_of(job);
  EXPECT_ANY_THROW({
    fill(stranger, kValues, kTooLarge);
    stranger->check({"stranger/0"});
  }) << "a connection that says too much is closed";
  wait_for_steps_of(job);
  for (const auto& rank : job.ranks) EXPECT_TRUE(is_running(rank->pid()));
}

// As docs/explain/security.md describes: the ranks believe the store, and the job ends as if a rank were lost.
TEST(NarrowcastTrainStrangersTest, EndTheJobByTellingOfASilentRank) {
  constexpr std::string_view kSign = "watch/sign/0";
  const EndlessRanks job(2, {"--hook=int8"});
  const network::TcpStorePtr stranger = stranger_in_the_store(job);
  const std::vector<std::string> keys = stranger->listKeys();
  const auto sign = std::ranges::find_if(keys, [&](const std::string& key) { return key.ends_with(kSign); });
  ASSERT_NE(sign, keys.end());
  stranger->set(sign->substr(0, sign->size() - kSign.size()) + "watch/silent", std::vector<uint8_t>{'1'});
  const ProgramEnd end = job.ranks[0]->wait();
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.errors, ::testing::HasSubstr("rank 0: rank 1 is lost"));
  EXPECT_EQ(job.ranks[1]->wait().exit_code, 3);
}

}  // namespace
}  // namespace narrowcast::testing

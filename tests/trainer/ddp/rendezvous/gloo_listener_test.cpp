#include "trainer/ddp/rendezvous/gloo_listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include <narrowcast/consensus.h>
#include "tests/support/patience.h"
#include "tests/trainer/ddp/process_group/ranks_on_threads.h"
#include "trainer/ddp/rendezvous/rendezvous.h"

namespace narrowcast::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <class Value>
void append(std::vector<uint8_t>& bytes, const Value& value) {
  const size_t end = bytes.size();
  bytes.resize(end + sizeof(value));
  std::memcpy(bytes.data() + end, &value, sizeof(value));
}

// The entry of a rank that listens at this port of 127.0.0.1.
std::vector<uint8_t> entry_of(uint16_t port, const std::vector<int64_t>& numbers) {
  std::vector<uint8_t> bytes;
  append(bytes, size_t{4});
  for (const char letter : {'h', 'o', 's', 't'}) append(bytes, letter);
  append(bytes, sizeof(sockaddr_storage) + sizeof(int64_t));
  sockaddr_storage address{};
  auto& internet = reinterpret_cast<sockaddr_in&>(address);
  internet.sin_family = AF_INET;
  internet.sin_port = htons(port);
  internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  append(bytes, address);
  append(bytes, int64_t{-1});
  for (const int64_t number : numbers) append(bytes, number);
  return bytes;
}

int64_t entries_of(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

TEST(GlooAddress, IsReadFromAnEntry) {
  const GlooAddress address = GlooAddress::parse(entry_of(4711, {3, 4}));
  EXPECT_EQ(address.place.port(), 4711);
  EXPECT_THAT(address.numbers, ElementsAre(3, 4));
  EXPECT_THAT(GlooAddress::parse(entry_of(4711, {})).numbers, IsEmpty());
}

TEST(GlooAddress, OtherBytesAreNone) {
  const std::vector<uint8_t> entry = entry_of(4711, {3, 4});
  for (size_t length = 0; length < entry.size(); ++length) {
    const GlooAddress address =
        GlooAddress::parse({entry.begin(), entry.begin() + static_cast<std::ptrdiff_t>(length)});
    EXPECT_EQ(address.is_empty(), length < entry.size() - 16 || length % 8 != entry.size() % 8) << length;
  }
  EXPECT_TRUE(GlooAddress::parse(std::vector<uint8_t>(300, 0xFF)).is_empty());
  EXPECT_TRUE(GlooAddress::parse(std::vector<uint8_t>(300, 0)).is_empty());
}

// Two ranks on one node, and their launcher's store.
class InterruptedConnectionTest : public ::testing::TestWithParam<uint16_t> {
 protected:
  WorkerEnv env(int64_t rank) const {
    WorkerEnv env = testing::env_at({rank, 2}, launcher_.getPort());
    env.use_agent_store = true;
    env.recovers_in_place = true;
    env.run_id = "run";
    return env;
  }
  // Both ranks form a group. The first time, rank 1 dies when the ranks have met: it only tells where it listens.
  void meet_twice() {
    auto survivor = std::async(std::launch::async, [&] {
      const ProcessGroupScope scope(env(0), testing::options_of_thread(0));
      EXPECT_EQ(all_reduce_sum(scope.group(), {1.0}).at(0), 2);
    });
    {
      JobStore dead(env(1), {.timeout = testing::kPatience, .interface = ""});
      const auto keys = dead.join();
      keys->set("gloo/0/1", entry_of(GetParam(), {0, 1}));
      keys->wait({"gloo/0/0"}, testing::kPatience);
      dead.end_joining();
    }
    launcher_.add("narrowcast/run/starts", 1);
    {
      const ProcessGroupScope scope(env(1), testing::options_of_thread(1));
      EXPECT_EQ(all_reduce_sum(scope.group(), {1.0}).at(0), 2);
    }
    survivor.get();
  }

  c10d::TCPStore launcher_{"127.0.0.1", c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false}};
};

// Gloo itself would wait for it for the whole time-out, on a thread with sockets.
TEST_P(InterruptedConnectionTest, LeavesNothingBehind) {
  meet_twice();  // Libraries start threads and open files that stay.
  const int64_t threads = entries_of("/proc/self/task");
  const int64_t files = entries_of("/proc/self/fd");
  meet_twice();
  meet_twice();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while ((entries_of("/proc/self/task") > threads || entries_of("/proc/self/fd") > files) &&
         std::chrono::steady_clock::now() < deadline) {
    testing::pause_between_looks();
  }
  EXPECT_LE(entries_of("/proc/self/task"), threads);
  EXPECT_LE(entries_of("/proc/self/fd"), files);
}

// The port decides which of the two ranks connects to the other.
INSTANTIATE_TEST_SUITE_P(Ports, InterruptedConnectionTest, ::testing::Values(1, 65535));

}  // namespace
}  // namespace narrowcast::rendezvous

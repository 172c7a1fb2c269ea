#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/process_group.h>
#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/trainer/ddp/process_group/ranks_on_threads.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using testing::env_at;
using testing::error_message;
using testing::free_port;
using ::testing::HasSubstr;
using testing::options_of_thread;
using testing::sum_ranks_on_threads;

TEST(ProcessGroupGlooTest, FindsTheAddressTowardsTheMasterOnSeveralNodes) {
  const int64_t port = free_port();
  sum_ranks_on_threads(2, [&](int64_t rank) {
    WorkerEnv env = env_at({rank, 2}, port);
    env.local_world_size = 1;  // One rank per node; the two nodes are this machine.
    env.local_rank = 0;
    return env;
  });
}

TEST(ProcessGroupGlooTest, ListensNowhereButAtLoopbackOnOneNode) {
  const int64_t port = free_port();
  std::vector<std::string> listening;
  std::thread rank1([&] {
    const ProcessGroupScope scope(env_at({1, 2}, port), options_of_thread(1));
    barrier(scope.group(), "while the other rank looks");
  });
  {
    const ProcessGroupScope scope(env_at({0, 2}, port), options_of_thread(0));
    listening = testing::listening_addresses();
    barrier(scope.group(), "while the other rank looks");
  }
  rank1.join();
  EXPECT_THAT(listening, AllOf(::testing::SizeIs(::testing::Ge(2)), ::testing::Each("127.0.0.1")))
      << "rank 0's store and both ranks' sockets for messages";
}

TEST(ProcessGroupGlooTest, UsesTheInterfaceAskedFor) {
  const int64_t port = free_port();
  sum_ranks_on_threads(2, [&](int64_t rank) {
    WorkerEnv env = env_at({rank, 2}, port);
    env.socket_interface = "lo";
    return env;
  });
}

class GlooTransportTest : public ::testing::Test {
 protected:
  // Joins with this GLOO_DEVICE_TRANSPORT. The other rank does not exist, and nothing waits for it.
  static std::string error_with(const std::string& transport) {
    ::setenv("GLOO_DEVICE_TRANSPORT", transport.c_str(), 1);
    return error_message<c10::ValueError>([] { init_process_group(env_at({.rank = 1}, free_port())); });
  }
  void TearDown() override { ::unsetenv("GLOO_DEVICE_TRANSPORT"); }
};

TEST_F(GlooTransportTest, RefusesTlsThatWouldNotEncryptBeforeTheStoreIsReached) {
  EXPECT_THAT(error_with("TCP_TLS"), AllOf(HasSubstr("GLOO_DEVICE_TRANSPORT=TCP_TLS"), HasSubstr("plain text")));
}

TEST_F(GlooTransportTest, NamesATransportThatLibTorchLacks) {
  for (const std::string transport : {"UV", "IBVERBS", "tcp_tls", ""}) {
    EXPECT_THAT(error_with(transport), HasSubstr("GLOO_DEVICE_TRANSPORT='" + transport + "' is not a transport"));
  }
}

TEST_F(GlooTransportTest, TakesTheOneThatWorksByBothItsNames) {
  for (const char* const transport : {"TCP", "LINUX"}) {
    ::setenv("GLOO_DEVICE_TRANSPORT", transport, 1);
    const ProcessGroupScope scope(WorkerEnv{});
    EXPECT_EQ(scope.group()->getSize(), 1);
  }
}

}  // namespace
}  // namespace narrowcast

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/process_group.h>
#include "tests/support/error_message.h"
#include "tests/support/listening_sockets.h"
#include "tests/support/loopback_socket.h"
#include "tests/trainer/ddp/process_group/ranks_on_threads.h"
#include "trainer/ddp/backends/gloo_backend.h"

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

// The threads of this process that do not take a running thread's core when they are woken (sched(7)).
int64_t count_batch_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::count_if(begin(threads), end(threads), [](const std::filesystem::directory_entry& thread) {
    return ::sched_getscheduler(std::stoi(thread.path().filename())) == SCHED_BATCH;
  });
}

TEST(ProcessGroupGlooTest, MovesMessagesInAThreadThatLetsOthersRun) {
  const ProcessGroupScope scope(env_at({0, 1}, free_port()), options_of_thread(0));
  EXPECT_EQ(count_batch_threads(), 1);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
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

// Rank 0 waits in the second of two groups, whose other rank sends nothing.
TEST(CloseTogether, EndsWaitsInAnotherGroup) {
  const int64_t ports[] = {free_port(), free_port()};
  std::promise<void> is_over;
  const auto join = [&](int64_t rank, const char* name, int64_t port) {
    ProcessGroupOptions options = options_of_thread(rank);
    options.group_name += name;
    return std::make_unique<ProcessGroupScope>(env_at({rank, 2}, port), options);
  };
  std::thread rank1([&] {
    const auto first = join(1, "first", ports[0]);
    const auto second = join(1, "second", ports[1]);
    barrier(second->group(), "until no rank connects any more");
    is_over.get_future().wait();
  });
  {
    const auto first = join(0, "first", ports[0]);
    const auto second = join(0, "second", ports[1]);
    barrier(second->group(), "until no rank connects any more");
    const auto backend = [](const auto& scope) { return scope->group()->getBackend(c10::DeviceType::CPU); };
    std::vector<at::Tensor> tensors = {at::zeros({3})};
    const auto waits = second->group()->recv(tensors, 1, 0);
    close_together(backend(first), backend(second));
    close_gloo_connections(*backend(first));
    EXPECT_ANY_THROW(waits->wait());
    is_over.set_value();
  }
  rank1.join();
}

}  // namespace
}  // namespace narrowcast

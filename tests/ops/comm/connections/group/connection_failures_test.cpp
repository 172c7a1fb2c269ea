// Failures of a group's sockets and of its Gloo backend, which end each other.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ops/comm/connections/group/connections.h"
#include "ops/comm/engine/engine.h"
#include "tests/ops/comm/connections/messages/standard_error.h"
#include "tests/ops/comm/engine/two_hops.h"
#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using engine::Engine;
using node::NodeLayout;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

NodeLayout one_level(const Group& group) { return NodeLayout::flat(group->getSize()); }

std::string error_of_exchange(const Group& group) {
  return testing::error_message<c10::DistBackendError>(
      [&] { Engine::for_group(group)->submit(std::make_shared<engine::TwoHops>(0, 1000))->waitAndThrow(); });
}

// The error of a message of Gloo that nobody sends.
std::string error_of_message(const Group& group, int64_t peer, std::chrono::milliseconds timeout) {
  at::Tensor byte = at::zeros({1}, at::kByte);
  std::vector<at::Tensor> tensors{byte};
  const auto work = group->getBackend(c10::DeviceType::CPU)->recv(tensors, static_cast<int>(peer), 5);
  return standard_error<std::exception>([&] { work->wait(timeout); });
}

// Rank 2 computes. On rank 0 one message times out, of Gloo or of the sockets. All waits of rank 0 end with it, and its
// peers' waits, which are of the other kind.
TEST(TimeOuts, OfGlooEndTheSockets) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    open_connections(group, 2, one_level(group));
    const auto begin = Clock::now();
    if (rank == 0) {
      std::thread message(
          [&] { EXPECT_THAT(error_of_message(group, 2, std::chrono::milliseconds(300)), HasSubstr("Timed out")); });
      EXPECT_THAT(error_of_exchange(group), AllOf(HasSubstr("rank 0: exchange 0: "), HasSubstr("rank "),
                                                  HasSubstr("the process group has closed its connections")));
      message.join();
    } else if (rank == 1) {
      EXPECT_THAT(error_of_exchange(group), AllOf(HasSubstr("rank 1: exchange 0: "), HasSubstr("rank 0")));
    }
    EXPECT_LT(Clock::now() - begin, testing::kPatience / 2);
  });
}

TEST(TimeOuts, OfTheSocketsEndGloo) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    open_connections(group, 2, one_level(group));
    const auto begin = Clock::now();
    if (rank == 0) {
      testing::set_timeout(group, std::chrono::milliseconds(500));
      std::thread message([&] { EXPECT_NE(error_of_message(group, 2, testing::kPatience), ""); });
      EXPECT_THAT(error_of_exchange(group), AllOf(HasSubstr("rank 0: exchange 0: "), HasSubstr("Timed out waiting")));
      message.join();
    } else if (rank == 1) {
      EXPECT_NE(error_of_message(group, 0, testing::kPatience), "");
    }
    EXPECT_LT(Clock::now() - begin, testing::kPatience / 2);
  });
}

// A rank that has no more to do leaves. The others go on.
TEST(Leaving, OfOneRankLeavesTheConnectionsOfTheOthers) {
  const auto run = [] {
    run_ranks(3, [](int64_t rank, const Group& group) {
      const NodeLayout layout = one_level(group);
      open_connections(group, 2, layout);
      if (rank == 2) throw testing::Death();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      std::vector<at::Tensor> tensors{at::zeros({1}, at::kByte)};
      const auto carrier = Engine::for_group(group)->carrier().backend;
      const auto work = rank == 0 ? carrier->send(tensors, 1, 3) : carrier->recv(tensors, 0, 3);
      EXPECT_TRUE(work->wait());
      const auto gloo = group->getBackend(c10::DeviceType::CPU);
      EXPECT_TRUE((rank == 0 ? gloo->send(tensors, 1, 3) : gloo->recv(tensors, 0, 3))->wait());
    });
  };
  EXPECT_THROW(run(), testing::Death);
}

// The connected TCP sockets of this process.
std::vector<int> connected_sockets() {
  std::vector<int> sockets;
  for (int number = 0; number < 1024; ++number) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.ss_family == AF_INET) {
      sockets.push_back(number);
    }
  }
  return sockets;
}

// As a firewall that ends one connection of two processes that live.
TEST(ProcessesThatLoseASocket, LoseEachOther) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    const std::vector<int> before = connected_sockets();
    open_connections(group, 4, one_level(group));
    std::vector<int> opened = connected_sockets();
    std::erase_if(opened, [&](int socket) { return std::ranges::find(before, socket) != before.end(); });
    ASSERT_EQ(opened.size(), 4);
    testing::wait_for_ranks(group);  // The loss of one socket closes the others.
    const auto begin = Clock::now();
    if (rank == 0) ::shutdown(opened[2], SHUT_RDWR);
    const std::string peer = std::to_string(1 - rank);
    EXPECT_THAT(error_of_exchange(group), AllOf(HasSubstr("rank " + std::to_string(rank) + ": exchange 0: "),
                                                HasSubstr("rank " + peer), HasSubstr("Connection closed by peer")));
    EXPECT_LT(Clock::now() - begin, testing::kPatience / 4);
    testing::wait_for_ranks(group);  // The group's own connections are as they were.
  });
  EXPECT_THAT(codes, ::testing::Each(testing::kRankPassed));
}

// Rank 1 finds in the meeting that it has too few files. The others must not wait for it.
TEST(ProcessesThatMeet, TellAFailureOfOneRank) {
  const auto codes = testing::fork_ranks(3, [](int64_t rank, const Group& group) {
    constexpr std::chrono::milliseconds kUntilLimit{300};
    std::unique_ptr<testing::OpenFileLimit> limit;
    std::thread limiter([&] {
      if (rank != 1) return;
      std::this_thread::sleep_for(kUntilLimit);
      limit = std::make_unique<testing::OpenFileLimit>(testing::next_descriptor() + 6);
    });
    if (rank == 0) std::this_thread::sleep_for(2 * kUntilLimit);  // Rank 1 has counted its files, and waits for it.
    const auto begin = Clock::now();
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { open_connections(group, 8, one_level(group)); }),
                AllOf(HasSubstr("rank " + std::to_string(rank) + ": opening connections failed: rank 1: "),
                      HasSubstr("Too many open files")));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    limiter.join();
    limit.reset();
    open_connections(group, 2, one_level(group));
  });
  EXPECT_THAT(codes, ::testing::Each(testing::kRankPassed));
}

}  // namespace
}  // namespace narrowcast::connections

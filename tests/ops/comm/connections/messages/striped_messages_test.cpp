#include "ops/comm/connections/messages/striped_messages.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/comm/connections/messages/peer.h"
#include "tests/ops/comm/connections/messages/standard_error.h"
#include "tests/ops/comm/connections/messages/two_ends.h"
#include "tests/support/patience.h"

namespace narrowcast::connections {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::pause_between_looks;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class Sizes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Sizes, ArriveWholeWhetherTheReceiveIsPostedBeforeOrAfter) {
  const auto [count, size] = GetParam();
  TwoEnds ends(count);
  const std::array<at::Tensor, 3> sent = {random_bytes(size), random_bytes(size), random_bytes(2 * size + 1)};
  const std::array<at::Tensor, 3> received = {empty_bytes(size), empty_bytes(size), empty_bytes(2 * size + 1)};
  const WorkPtr before = ends.second->receive(kPeer, 2, received[2]);
  std::vector<WorkPtr> works;
  for (int64_t tag = 0; tag < 3; ++tag) works.push_back(ends.first->send(kPeer, tag, sent[tag]));
  EXPECT_TRUE(before->wait());
  EXPECT_TRUE(ends.second->receive(kPeer, 1, received[1])->wait());
  EXPECT_TRUE(ends.second->receive(kPeer, 0, received[0])->wait());
  for (const WorkPtr& work : works) EXPECT_TRUE(work->wait());
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_TRUE(at::equal(sent[i], received[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(StripedMessages, Sizes,
                         ::testing::Combine(::testing::Values(1, 2, 5, 16), ::testing::Values(0, 1, 8192, 3'000'001)));

TEST(StripedMessages, MessagesOfOneTagKeepTheirOrder) {
  TwoEnds ends(3);
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> received;
  std::vector<WorkPtr> works;
  for (int64_t i = 0; i < 20; ++i) {
    sent.push_back(random_bytes(100));
    received.push_back(empty_bytes(100));
    works.push_back(ends.second->receive(kPeer, 0, received.back()));
    ends.first->send(kPeer, 0, sent.back())->wait();
    works.back()->wait();
  }
  EXPECT_TRUE(at::equal(at::cat(sent), at::cat(received)));
}

// Both directions at once, with more bytes than the sockets hold: no side waits for the other one.
TEST(StripedMessages, BothSidesMaySendBeforeTheyReceive) {
  TwoEnds ends(4);
  const at::Tensor sent = random_bytes(20'000'000);
  const at::Tensor at_first = empty_bytes(sent.numel());
  const at::Tensor at_second = empty_bytes(sent.numel());
  const WorkPtr from_first = ends.first->send(kPeer, 0, sent);
  const WorkPtr from_second = ends.second->send(kPeer, 0, sent);
  EXPECT_TRUE(from_first->wait());
  EXPECT_TRUE(from_second->wait());
  EXPECT_TRUE(ends.first->receive(kPeer, 0, at_first)->wait());
  EXPECT_TRUE(ends.second->receive(kPeer, 0, at_second)->wait());
  EXPECT_TRUE(at::equal(at_first, sent) && at::equal(at_second, sent));
}

TEST(StripedMessages, AnAbortEndsOneWait) {
  TwoEnds ends(2);
  const at::Tensor received = empty_bytes(10);
  const WorkPtr receive = ends.first->receive(kPeer, 0, received);
  receive->abort();
  EXPECT_FALSE(receive->wait());
  ends.second->send(kPeer, 0, at::ones({10}, at::kByte))->wait();
  EXPECT_TRUE(receive->wait());
  EXPECT_TRUE(receive->wait()) << "a second wait";
  EXPECT_EQ(received.sum().item<int64_t>(), 10);
}

TEST(StripedMessages, ATimeoutClosesAllSocketsOnBothSides) {
  std::atomic<int> failures = 0;
  TwoEnds ends(2, {.timeout = [] { return std::chrono::milliseconds(50); }, .on_failure = [&] { ++failures; }});
  const WorkPtr receive = ends.first->receive(kPeer, 0, empty_bytes(10));
  EXPECT_EQ(standard_error<std::runtime_error>([&] { receive->wait(); }),
            "Timed out waiting 50ms for recv operation to complete");
  EXPECT_THROW(receive->wait(), std::runtime_error);
  EXPECT_EQ(failures, 1);
  const auto receive_at_peer = [&] { ends.second->receive(kPeer, 0, empty_bytes(10))->wait(kPatience); };
  EXPECT_THAT(standard_error<std::runtime_error>(receive_at_peer), HasSubstr("Connection closed by peer"));
}

// As a worker of a data loader, which has copies of all descriptors, does until it ends.
TEST(StripedMessages, APeerIsToldOfTheEndWhileAForkedChildHoldsTheSockets) {
  TwoEnds ends(2);
  int lives[2];
  ASSERT_EQ(::pipe(lives), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(lives[1]);
    char end = 0;
    ::_exit(::read(lives[0], &end, 1) == 0 ? 0 : 1);  // Until the parent has closed its end.
  }
  ends.first->close("over");
  const auto receive_at_peer = [&] { ends.second->receive(kPeer, 0, empty_bytes(10))->wait(kPatience); };
  EXPECT_THAT(standard_error<std::runtime_error>(receive_at_peer), HasSubstr("Connection closed by peer"));
  ::close(lives[0]);
  ::close(lives[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

TEST(StripedMessages, WhatAPeerHasSentBeforeItLeftCanStillBeReceived) {
  TwoEnds ends(4);
  const at::Tensor sent = random_bytes(100'000);
  ends.first->send(kPeer, 3, sent)->wait();
  ends.first.reset();
  const at::Tensor received = empty_bytes(sent.numel());
  EXPECT_TRUE(ends.second->receive(kPeer, 3, received)->wait());
  EXPECT_TRUE(at::equal(received, sent));
  EXPECT_THROW(ends.second->receive(kPeer, 4, received)->wait(), std::runtime_error);
  EXPECT_THROW(ends.second->send(kPeer, 4, sent)->wait(), std::runtime_error);
}

// The network ends one of several sockets, and what was under way there is lost. Nobody waits for it.
TEST(StripedMessages, TheEndOfOneSocketIsTheLossOfThePeerOnBothSides) {
  std::atomic<int> failures = 0;
  StripedMessages::Options options = patient();
  options.on_failure = [&] { ++failures; };
  std::vector<FileDescriptor> firsts;
  std::vector<FileDescriptor> seconds;
  for (int i = 0; i < 3; ++i) {
    auto [one, other] = connected_pair();
    firsts.push_back(std::move(one));
    seconds.push_back(std::move(other));
  }
  const FileDescriptor middle(::dup(firsts[1].get()));
  const auto first = messages_over(std::move(firsts), options);
  const auto second = messages_over(std::move(seconds), options);
  const at::Tensor sent = random_bytes(1000);
  EXPECT_TRUE(first->send(kPeer, 0, sent)->wait());
  std::vector<WorkPtr> works = {first->receive(kPeer, 1, empty_bytes(10)), second->receive(kPeer, 1, empty_bytes(10)),
                                // More than the kernel keeps.
                                first->send(kPeer, 2, random_bytes(50'000'000))};
  const auto begin = std::chrono::steady_clock::now();
  ::shutdown(middle.get(), SHUT_RDWR);
  for (const WorkPtr& work : works) {
    // Whether an end sees the other's end or an error depends on what it was reading or writing.
    EXPECT_THAT(
        standard_error<std::runtime_error>([&] { work->wait(); }),
        AnyOf(HasSubstr("Connection closed by peer"), HasSubstr("Connection reset by peer"), HasSubstr("Broken pipe")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience / 4);
  for (const auto* const end : {&first, &second}) {
    EXPECT_TRUE((*end)->has_lost_peers());
    EXPECT_THROW((*end)->send(kPeer, 3, sent), std::runtime_error);
  }
  EXPECT_EQ(failures, 0) << "as if the peer had ended";
}

TEST(StripedMessages, WhatIsUnderWayInOtherSocketsArrivesAfterTheEndOfOne) {
  std::vector<FileDescriptor> own(3);
  std::vector<FileDescriptor> others(3);
  for (size_t i = 0; i < own.size(); ++i) std::tie(own[i], others[i]) = connected_pair();
  const auto messages = messages_over(std::move(own));
  const at::Tensor received = empty_bytes(20);
  const WorkPtr receive = messages->receive(kPeer, 5, received);
  others[0].close();
  const auto begin = std::chrono::steady_clock::now();
  while (!messages->has_lost_peers() && std::chrono::steady_clock::now() - begin < kPatience) pause_between_looks();
  ASSERT_TRUE(messages->has_lost_peers());
  for (int64_t i = 1; i < 3; ++i) {
    const FrameHeader header{kFrameMark, 0, 5, 20, 10 * (i - 1), 10};
    const std::string frame = std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + std::string(10, 1);
    ASSERT_EQ(::send(others[i].get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
    char byte = 0;
    EXPECT_EQ(::recv(others[i].get(), &byte, 1, 0), 0) << "the peer is told, on each socket, that nothing comes";
  }
  EXPECT_TRUE(receive->wait());
  EXPECT_EQ(received.sum().item<int64_t>(), 20);
  const WorkPtr next = messages->receive(kPeer, 6, received);
  others.clear();
  EXPECT_THAT(standard_error<std::runtime_error>([&] { next->wait(); }), HasSubstr("Connection closed by peer"));
}

TEST(StripedMessages, AMessageOfAnotherSizeIsAnErrorThatNamesBoth) {
  for (const bool is_early : {false, true}) {
    TwoEnds ends(2);
    WorkPtr receive;
    if (!is_early) receive = ends.second->receive(kPeer, 0, empty_bytes(1000));
    ends.first->send(kPeer, 0, empty_bytes(1001))->wait();
    if (is_early) {
      ends.first->send(kPeer, 1, empty_bytes(1))->wait();
      EXPECT_TRUE(ends.second->receive(kPeer, 1, empty_bytes(1))->wait());
    }
    const auto wait = [&] {
      if (is_early) receive = ends.second->receive(kPeer, 0, empty_bytes(1000));
      receive->wait();
    };
    EXPECT_EQ(standard_error<std::runtime_error>(wait), "it sent a message of 1001 bytes instead of the expected 1000");
  }
}

TEST(StripedMessages, BytesThatAreNotAFrameEndTheConnection) {
  const FrameHeader valid{kFrameMark, 0, 0, 10, 0, 10};
  ASSERT_TRUE(valid.is_valid());
  std::vector<FrameHeader> bad(7, valid);
  bad[0].mark = 0;
  bad[1].bytes = 0;
  bad[2].bytes = -1;
  bad[3].begin = 1;
  bad[4].begin = -1;
  bad[5].total = -1;
  bad[6] = {kFrameMark, 0, 0, kMostMessageBytes, kMostMessageBytes - 1, kMostFrameBytes};
  bad.push_back({kFrameMark, 0, 5, kMostMessageBytes + 1, 0, 8});
  for (const FrameHeader& header : bad) {
    EXPECT_FALSE(header.is_valid());
    auto [stranger, own] = connected_pair();
    std::vector<FileDescriptor> sockets;
    sockets.push_back(std::move(own));
    std::promise<void> failed;
    StripedMessages::Options options = patient();
    options.on_failure = [&] { failed.set_value(); };
    const auto messages = messages_over(std::move(sockets), options);
    const WorkPtr receive = messages->receive(kPeer, 0, empty_bytes(10));
    ASSERT_EQ(::send(stranger.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
    EXPECT_EQ(standard_error<std::runtime_error>([&] { receive->wait(); }), "it sent bytes that are not a message");
    EXPECT_EQ(failed.get_future().wait_for(kPatience), std::future_status::ready);
  }
}

TEST(StripedMessages, TheEndOfAPeerIsNotAFailure) {
  std::atomic<int> failures = 0;
  StripedMessages::Options options = patient();
  options.on_failure = [&] { ++failures; };
  for (const bool is_unread : {false, true}) {
    auto [peer, own] = connected_pair();
    std::vector<FileDescriptor> sockets;
    sockets.push_back(std::move(own));
    const auto messages = messages_over(std::move(sockets), options);
    const WorkPtr receive = messages->receive(kPeer, 0, empty_bytes(10));
    if (is_unread) messages->send(kPeer, 0, empty_bytes(10))->wait();  // Then the socket ends with a reset.
    peer.close();
    EXPECT_THROW(receive->wait(), std::runtime_error);
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // More than two looks.
  }
  EXPECT_EQ(failures, 0);
}

// As Gloo's threads: when they are woken, they do not take the core of a thread that runs.
TEST(StripedMessages, MoveBytesOnAThreadOfBatchScheduling) {
  std::promise<int> policy;
  StripedMessages::Options options = patient();
  options.look = [&, is_first = true]() mutable {
    if (std::exchange(is_first, false)) policy.set_value(::sched_getscheduler(0));
    return StripedMessages::News{};
  };
  auto [one, other] = connected_pair();
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(one));
  const auto messages = messages_over(std::move(sockets), options);
  EXPECT_EQ(policy.get_future().get(), SCHED_BATCH);
}

// More bytes than the message has, and two sizes of one message.
TEST(StripedMessages, FramesThatDoNotFitAreErrors) {
  for (const auto& headers : {std::vector<FrameHeader>{{kFrameMark, 0, 0, 10, 0, 8}, {kFrameMark, 0, 0, 10, 2, 8}},
                              std::vector<FrameHeader>{{kFrameMark, 0, 0, 10, 0, 8}, {kFrameMark, 0, 0, 20, 2, 8}}}) {
    auto [stranger, own] = connected_pair();
    std::vector<FileDescriptor> sockets;
    sockets.push_back(std::move(own));
    const auto messages = messages_over(std::move(sockets));
    const WorkPtr receive = messages->receive(kPeer, 0, empty_bytes(10));
    for (const FrameHeader& header : headers) {
      const std::array<char, 8> bytes{};
      ASSERT_GT(::send(stranger.get(), &header, sizeof(header), 0), 0);
      ::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    EXPECT_THROW(receive->wait(), std::runtime_error);
  }
}

// A rank that has left its group, but whose process lives, must not let its peers wait.
TEST(StripedMessages, ClosesItsSocketsWhenNobodyCanUseThem) {
  auto [one, other] = connected_pair();
  SocketsByPeer by_peer;
  by_peer[kPeer].push_back(std::move(one));
  StripedMessages::Options options = patient();
  options.look = [] { return StripedMessages::News{.over = "nobody is left"}; };
  const StripedMessages over(std::move(by_peer), options);
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(other));
  const auto messages = messages_over(std::move(sockets));
  EXPECT_THROW(messages->receive(kPeer, 0, empty_bytes(10))->wait(), std::runtime_error);
}

}  // namespace
}  // namespace narrowcast::connections

// Messages that arrive before their receives are posted.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ops/comm/connections/messages/peer.h"
#include "ops/comm/connections/messages/striped_messages.h"
#include "tests/ops/comm/connections/messages/standard_error.h"
#include "tests/ops/comm/connections/messages/two_ends.h"
#include "tests/support/patience.h"
#include "tests/support/sanitized.h"

namespace narrowcast::connections {
namespace {

using testing::kPatience;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kSize = 200'000;
constexpr int64_t kMessages = 100;
constexpr int64_t kMostEarly = 3 * kSize;
// Socket pairs hold less than this.
constexpr int64_t kMostInKernel = 10 * kSize;
constexpr std::chrono::milliseconds kLong{300};

StripedMessages::Options bounded() {
  StripedMessages::Options options = patient();
  options.most_early_bytes = kMostEarly;
  return options;
}

StripedMessages::Options without_memory() {
  StripedMessages::Options options = patient();
  options.most_early_bytes = 0;
  return options;
}

// Sends messages with tags 0, 1, ... to the peer, and counts those that have left.
class Sender {
 public:
  explicit Sender(StripedMessages& messages) {
    for (int64_t tag = 0; tag < kMessages; ++tag) {
      sent_.push_back(random_bytes(kSize));
      works_.push_back(messages.send(kPeer, tag, sent_.back()));
    }
    thread_ = std::thread([this] {
      try {
        for (const WorkPtr& work : works_) left_ += work->wait() ? 1 : 0;
      } catch (const std::runtime_error&) {
        // The sockets were closed.
      }
    });
  }
  ~Sender() { thread_.join(); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  const at::Tensor& sent(int64_t tag) const { return sent_.at(static_cast<size_t>(tag)); }
  int64_t bytes_left() const { return left_ * kSize; }

 private:
  std::vector<at::Tensor> sent_;
  std::vector<WorkPtr> works_;
  std::atomic<int64_t> left_{0};
  std::thread thread_;
};

TEST(EarlyMessages, AreBoundedForARankThatOnlySends) {
  for (const int64_t connections : {1, 4}) {
    TwoEnds ends(connections, bounded());
    const Sender sender(*ends.first);
    std::this_thread::sleep_for(kLong);
    EXPECT_LE(sender.bytes_left(), kMostEarly + kMostInKernel);
    for (int64_t tag = 0; tag < kMessages; ++tag) {
      const at::Tensor received = empty_bytes(kSize);
      EXPECT_TRUE(ends.second->receive(kPeer, tag, received)->wait());
      EXPECT_TRUE(at::equal(received, sender.sent(tag))) << tag;
    }
  }
}

TEST(EarlyMessages, WithoutMemoryDoNotHoldBackAnEarlierMessage) {
  TwoEnds ends(3, without_memory());
  {
    const Sender sender(*ends.first);
    std::this_thread::sleep_for(kLong);
    for (int64_t tag = 0; tag < 2; ++tag) {
      const at::Tensor received = empty_bytes(kSize);
      EXPECT_TRUE(ends.second->receive(kPeer, tag, received)->wait());
      EXPECT_TRUE(at::equal(received, sender.sent(tag)));
    }
    ends.first->close("the end of the test");
  }
}

// Receives that are posted at once, in any order, get their messages, however small the bound is.
TEST(EarlyMessages, ArriveForReceivesThatArePostedInAnotherOrder) {
  TwoEnds ends(4, without_memory());
  const Sender sender(*ends.first);
  std::vector<at::Tensor> received(kMessages);
  std::vector<WorkPtr> works(kMessages);
  for (int64_t i = 0; i < kMessages; ++i) {
    const int64_t tag = (i * 37 + 11) % kMessages;
    received[tag] = empty_bytes(kSize);
    works[tag] = ends.second->receive(kPeer, tag, received[tag]);
  }
  for (int64_t tag = 0; tag < kMessages; ++tag) {
    EXPECT_TRUE(works[tag]->wait());
    EXPECT_TRUE(at::equal(received[tag], sender.sent(tag))) << tag;
  }
}

TEST(EarlyMessages, OfAPeerThatHasEndedDoNotHideItsEnd) {
  auto [own, other] = connected_pair();
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(own));
  const auto messages = messages_over(std::move(sockets), bounded());
  std::vector<FileDescriptor> sockets_of_peer;
  sockets_of_peer.push_back(std::move(other));
  auto peer = messages_over(std::move(sockets_of_peer));
  for (int64_t tag = 0; tag < 4; ++tag) peer->send(kPeer, tag, random_bytes(kSize));
  std::this_thread::sleep_for(kLong);  // The socket of the fourth message is not read now.
  peer.reset();
  const auto wait = [&] { messages->receive(kPeer, 9, empty_bytes(1))->wait(kPatience); };
  EXPECT_THAT(standard_error<std::runtime_error>(wait), ::testing::HasSubstr("Connection closed by peer"));
}

TEST(EarlyMessages, AreReadWhenNewsTellThatThePeerHasEnded) {
  std::atomic<bool> has_left = false;
  StripedMessages::Options options = bounded();
  options.look = [&] { return has_left ? StripedMessages::News{.left = {kPeer, kPeer + 1}} : StripedMessages::News{}; };
  TwoEnds ends(1, options);
  const Sender sender(*ends.first);
  std::this_thread::sleep_for(kLong);
  EXPECT_LT(sender.bytes_left(), kMessages * kSize);
  has_left = true;
  for (const auto deadline = std::chrono::steady_clock::now() + kPatience;
       sender.bytes_left() < kMessages * kSize && std::chrono::steady_clock::now() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(sender.bytes_left(), kMessages * kSize);
}

// No memory is taken for a message that can never be complete.
TEST(EarlyMessages, LargerThanWhatIsOnTheWayEndAPeerThatHasLeft) {
  std::atomic<bool> has_left = false;
  std::atomic<int> failures = 0;
  StripedMessages::Options options = bounded();
  options.look = [&] { return has_left ? StripedMessages::News{.left = {kPeer}} : StripedMessages::News{}; };
  options.on_failure = [&] { ++failures; };
  auto [own, peer] = connected_pair();
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(own));
  const auto messages = messages_over(std::move(sockets), options);
  const FrameHeader header{kFrameMark, 0, 1, kMostMessageBytes, 0, 8};
  ASSERT_EQ(::send(peer.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  std::this_thread::sleep_for(kLong);
  const WorkPtr receive = messages->receive(kPeer, 0, empty_bytes(1));
  has_left = true;
  EXPECT_THAT(standard_error<std::runtime_error>([&] { receive->wait(kPatience / 2); }),
              ::testing::HasSubstr("Connection closed by peer"));
  EXPECT_EQ(failures, 0) << "it has ended";
}

// A frame that no machine has memory for, from a peer that lives: its connections are not to be trusted.
TEST(EarlyMessages, ThatMemoryIsTooSmallForAreAFailure) {
  if (test::kSanitized) GTEST_SKIP() << "an allocation that is too large ends the process";
  try {
    at::empty({kMostMessageBytes}, at::kByte);
    GTEST_SKIP() << "this machine grants 1 TiB of memory";
  } catch (const std::exception&) {
  }
  std::promise<void> failed;
  StripedMessages::Options options = patient();
  options.most_early_bytes = 2 * kMostMessageBytes;
  options.on_failure = [&] { failed.set_value(); };
  auto [own, peer] = connected_pair();
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(own));
  const auto messages = messages_over(std::move(sockets), options);
  const WorkPtr receive = messages->receive(kPeer, 0, empty_bytes(1));
  const FrameHeader header{kFrameMark, 0, 1, kMostMessageBytes, 0, 8};
  ASSERT_EQ(::send(peer.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  EXPECT_THAT(standard_error<std::runtime_error>([&] { receive->wait(); }),
              ::testing::StartsWith("no memory for a message of 1099511627776 bytes: "));
  EXPECT_EQ(failed.get_future().wait_for(kPatience), std::future_status::ready);
}

// The sockets' thread needs the lock under which a receive is posted.
TEST(EarlyMessages, AreCopiedByTheThreadThatWaits) {
  TwoEnds ends(2);
  const at::Tensor sent = random_bytes(kSize);
  ends.first->send(kPeer, 0, sent)->wait();
  ends.first->send(kPeer, 1, sent)->wait();
  const at::Tensor last = empty_bytes(kSize);
  EXPECT_TRUE(ends.second->receive(kPeer, 1, last)->wait());  // Then the first has arrived as well, almost.
  std::this_thread::sleep_for(kLong);
  const at::Tensor received = empty_bytes(kSize);
  const WorkPtr receive = ends.second->receive(kPeer, 0, received);
  EXPECT_EQ(received.sum().item<int64_t>(), 0);
  std::vector<std::future<bool>> waits;
  for (int i = 0; i < 4; ++i) {
    waits.push_back(std::async(std::launch::async, [&] { return receive->wait() && at::equal(received, sent); }));
  }
  for (auto& wait : waits) EXPECT_TRUE(wait.get());
}

}  // namespace
}  // namespace narrowcast::connections

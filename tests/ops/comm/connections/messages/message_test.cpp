#include "ops/comm/connections/messages/message.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/ops/comm/connections/messages/two_ends.h"
#include "tests/support/patience.h"

namespace narrowcast::connections {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Messages without sockets.
class MessageTest : public ::testing::Test {
 protected:
  MessageTest() {
    waiting_->timeout = [] { return testing::kPatience; };
    waiting_->close = [this](const std::string& why) { closed_ = why; };
    waiting_->on_failure = [this] {
      const std::unique_lock<std::mutex> lock(waiting_->mutex, std::try_to_lock);
      failed_without_mutex_ = lock.owns_lock();
    };
  }

  MessagePtr make(const char* name, at::Tensor bytes) {
    return c10::make_intrusive<Message>(waiting_, name, std::move(bytes));
  }
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard<std::mutex> lock(waiting_->mutex);
    change();
  }
  static std::string error_of(Message& message, std::chrono::milliseconds timeout = kNoTimeout) {
    try {
      message.wait(timeout);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
  std::string closed_;
  bool failed_without_mutex_ = false;
};

TEST_F(MessageTest, BeginsWithAllBytesLeft) {
  const MessagePtr message = make("send", empty_bytes(7));
  EXPECT_EQ(message->left, 7);
  EXPECT_EQ(message->unclaimed, 7);
  EXPECT_FALSE(message->is_complete());
}

TEST_F(MessageTest, AWaitEndsWhenTheMessageIsComplete) {
  const MessagePtr message = make("recv", empty_bytes(7));
  std::thread other([&] { change([&] { message->complete(); }); });
  EXPECT_TRUE(message->wait(kNoTimeout));
  other.join();
  EXPECT_TRUE(message->wait(kNoTimeout)) << "again";
  EXPECT_FALSE(message->memory.defined()) << "a complete message keeps no memory";
}

TEST_F(MessageTest, AWaitThrowsWhyTheMessageHasFailed) {
  const MessagePtr message = make("recv", empty_bytes(7));
  std::thread other([&] { change([&] { message->fail("the peer is gone"); }); });
  EXPECT_EQ(error_of(*message), "the peer is gone");
  other.join();
  change([&] { message->fail("something else"); });
  EXPECT_EQ(error_of(*message), "the peer is gone") << "the first reason counts";
  EXPECT_FALSE(message->memory.defined());
  EXPECT_EQ(closed_, "");
}

// Its bytes are there, also if nobody has waited for them yet.
TEST_F(MessageTest, ACompleteMessageDoesNotFail) {
  const at::Tensor bytes = random_bytes(7);
  const MessagePtr early = make("recv", bytes);
  const at::Tensor memory = empty_bytes(7);
  const MessagePtr receive = make("recv", memory);
  change([&] {
    early->receive = receive;
    early->hand_over();
    receive->fail("the peer is gone");
  });
  EXPECT_TRUE(receive->wait(kNoTimeout));
  EXPECT_TRUE(at::equal(memory, bytes));
}

// As Gloo's pairs, which no later message may use either.
TEST_F(MessageTest, ATimeOutClosesAllSockets) {
  const MessagePtr message = make("recv", empty_bytes(7));
  EXPECT_THAT(error_of(*message, 1ms), HasSubstr("Timed out waiting 1ms for recv operation to complete"));
  EXPECT_THAT(closed_, HasSubstr("timeout"));
  EXPECT_TRUE(failed_without_mutex_);
}

TEST_F(MessageTest, AWaitWithoutALimitTakesThatOfTheGroup) {
  waiting_->timeout = [] { return 2ms; };
  EXPECT_THAT(error_of(*make("send", empty_bytes(7))), HasSubstr("Timed out waiting 2ms for send"));
}

TEST_F(MessageTest, AnAbortEndsOneWait) {
  const MessagePtr message = make("recv", empty_bytes(7));
  message->abort();
  EXPECT_FALSE(message->wait(kNoTimeout));
  change([&] { message->complete(); });
  EXPECT_TRUE(message->wait(kNoTimeout));
  EXPECT_EQ(closed_, "");
}

TEST_F(MessageTest, AnEarlyMessageGivesItsBytesToItsReceive) {
  const at::Tensor bytes = random_bytes(1000);
  const MessagePtr early = make("recv", bytes);
  const at::Tensor memory = empty_bytes(1000);
  const MessagePtr receive = make("recv", memory);
  change([&] {
    early->receive = receive;
    early->hand_over();
  });
  EXPECT_TRUE(early->is_complete());
  EXPECT_TRUE(receive->is_complete());
  EXPECT_TRUE(receive->wait(kNoTimeout));
  EXPECT_TRUE(at::equal(memory, bytes));
  EXPECT_FALSE(receive->memory.defined());
  EXPECT_FALSE(early->memory.defined());
}

// Both wait for the copy, which one of them makes.
TEST_F(MessageTest, TwoWaitsForAnEarlyMessageReturnAfterItsCopy) {
  constexpr int64_t kBytes = 16 << 20;  // The copy takes longer than the start of a wait.
  const at::Tensor memory = empty_bytes(kBytes);
  const MessagePtr early = make("recv", at::full({kBytes}, 1, at::kByte));
  const MessagePtr receive = make("recv", memory);
  uint8_t* const last = memory.mutable_data_ptr<uint8_t>() + kBytes - 1;
  std::array<int, 2> seen{};
  std::vector<std::thread> threads;
  for (int& value : seen) {
    threads.emplace_back([&] {
      receive->wait(kNoTimeout);
      value = *last;
    });
  }
  change([&] {
    early->receive = receive;
    early->hand_over();
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, (std::array<int, 2>{1, 1}));
}

TEST_F(MessageTest, AFailedEarlyMessageFailsItsReceive) {
  const MessagePtr early = make("recv", empty_bytes(7));
  const MessagePtr receive = make("recv", empty_bytes(7));
  change([&] {
    early->receive = receive;
    early->fail("the peer is gone");
  });
  EXPECT_EQ(error_of(*receive, 1s), "the peer is gone");
}

TEST_F(MessageTest, AFailedReceiveTakesNoBytes) {
  const at::Tensor memory = empty_bytes(7);
  const MessagePtr early = make("recv", at::full({7}, 1, at::kByte));
  const MessagePtr receive = make("recv", memory);
  change([&] {
    early->receive = receive;
    receive->fail("the peer is gone");
    early->hand_over();
  });
  EXPECT_TRUE(early->is_complete());
  EXPECT_EQ(error_of(*receive), "the peer is gone");
  EXPECT_FALSE(receive->memory.defined());
}

}  // namespace
}  // namespace narrowcast::connections

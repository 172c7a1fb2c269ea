#include "ops/comm/engine/transport.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TransportOptions options_of(const Group& group, int64_t sequence = 0) {
  return {.backend = group->getBackend(c10::DeviceType::CPU), .exchange = "test", .sequence = sequence};
}

at::Tensor byte(int64_t value) { return at::full({1}, value, at::kByte); }

TEST(Transport, TellsChannelsAndExchangesApart) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    Transport first(options_of(group, 0));
    Transport second(options_of(group, 1));
    if (rank == 0) {  // In another order than they are received.
      second.send({byte(3), 1, 5});
      first.send({byte(2), 1, 5});
      first.send({byte(1), 1, 4});
      first.wait_sends();
      second.wait_sends();
      return;
    }
    const std::vector<at::Tensor> bytes{byte(0), byte(0), byte(0)};
    const auto channel_4 = first.post_receive({bytes[0], 0, 4});
    const auto channel_5 = first.post_receive({bytes[1], 0, 5});
    const auto later = second.post_receive({bytes[2], 0, 5});
    first.wait_receive(channel_4);
    second.wait_receive(later);
    first.wait_receive(channel_5);
    first.wait_receive(channel_5);  // Already received.
    EXPECT_TRUE(at::equal(at::cat(bytes), at::tensor({1, 2, 3}, at::kByte)));
  });
}

TEST(Transport, NamesThePeersOfTheRing) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const Transport transport(options_of(group));
    EXPECT_EQ(transport.peer_after(1), (rank + 1) % 3);
    EXPECT_EQ(transport.peer_before(1), (rank + 2) % 3);
    for (const int64_t distance : {1, 2}) {
      EXPECT_EQ(transport.peer_before(distance), transport.peer_after(3 - distance));
    }
  });
}

TEST(Transport, SkipsEmptyMessagesOnBothSides) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    if (rank == 1) return;  // Any message sent or awaited would fail or block.
    Transport transport(options_of(group));
    const auto receive = transport.post_receive({at::empty({0}, at::kByte), 1});
    transport.send({at::empty({0}, at::kByte), 1});
    transport.wait_receive(receive);
    transport.wait_sends();
  });
}

TEST(Transport, AnInterruptedWaitGoesOn) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    auto options = options_of(group);
    int waits = 0;
    Transport* interrupted = nullptr;
    options.before_waiting = [&] {
      if (++waits == 1) interrupted->interrupt_wait();  // Before the wait, and yet not lost.
      if (waits == 2) wait_for_ranks(group);            // The message is sent only now.
    };
    Transport transport(std::move(options));
    interrupted = &transport;
    if (rank == 1) {
      wait_for_ranks(group);
      transport.send({byte(9), 0});
      return;
    }
    const at::Tensor received = byte(0);
    transport.wait_receive(transport.post_receive({received, 1}));
    EXPECT_EQ(received[0].item<int64_t>(), 9);
    EXPECT_EQ(waits, 2);
  });
}

TEST(Transport, GivingUpEndsTheWaitAndRefusesWhatComesLater) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    if (rank == 1) return;
    auto options = options_of(group);
    std::thread other;
    Transport* waiting = nullptr;
    options.before_waiting = [&] { other = std::thread([&] { waiting->give_up("given up on purpose"); }); };
    Transport transport(std::move(options));
    waiting = &transport;
    const auto receive = transport.post_receive({byte(0), 1});
    EXPECT_EQ(testing::error_message<c10::DistBackendError>([&] { transport.wait_receive(receive); }),
              "given up on purpose");
    other.join();
    EXPECT_THROW(transport.send({byte(1), 1}), c10::DistBackendError);
    EXPECT_THROW(transport.post_receive({byte(1), 1}), c10::DistBackendError);
  });
}

TEST(Transport, NamesAPeerThatSendsFewerBytesThanExpected) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    Transport transport(options_of(group));
    if (rank == 1) {
      transport.send({at::ones({1000 - 16}, at::kByte), 0});
      transport.wait_sends();
      return;
    }
    const auto receive = transport.post_receive({at::ones({1000}, at::kByte), 1});
    EXPECT_EQ(testing::error_message<c10::DistBackendError>([&] { transport.wait_receive(receive); }),
              "rank 0: test: rank 1 sent fewer than the expected 1000 bytes");
  });
}

// Gloo's behaviour: if a rank is sent too much, its process ends.
TEST(TransportDeathTest, APeerThatSendsMoreBytesThanExpectedEndsTheReceiver) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    Transport transport(options_of(group));
    if (rank == 1) {
      transport.send({at::ones({1001}, at::kByte), 0});
      EXPECT_THROW(wait_for_ranks(group), std::exception);
      return;
    }
    transport.wait_receive(transport.post_receive({at::ones({1000}, at::kByte), 1}));
    ADD_FAILURE() << "the message has arrived";
  });
  EXPECT_THAT(codes, ::testing::ElementsAre(128 + SIGABRT, testing::kRankPassed));
}

}  // namespace
}  // namespace narrowcast::engine

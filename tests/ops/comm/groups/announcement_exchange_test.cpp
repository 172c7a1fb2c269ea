#include "ops/comm/groups/announcement_exchange.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/comm/engine/transport.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/node/find_nodes.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using testing::wait_for_ranks;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

Announcement announcement_of(int64_t rank, int64_t number) {
  return {.call = "call " + std::to_string(number), .entries = {}, .numbers = {rank}};
}

engine::TransportOptions exchange_number(const GroupPtr& group, int64_t number) {
  return {.backend = group->getBackend(c10::DeviceType::CPU),
          .exchange = "exchange " + std::to_string(number),
          .sequence = number};
}

// One exchange of a rank, as a job runs it.
void run(AnnouncementExchange& exchange, const GroupPtr& group, int64_t number) {
  engine::Transport transport(exchange_number(group, number));
  exchange.set_own(announcement_of(group->getRank(), number));
  exchange.start(transport);
  if (exchange.has_forward()) exchange.forward(transport);
  exchange.wait(transport);
  transport.wait_sends();
}

void expect_all(const AnnouncementExchange& exchange, int64_t world_size, int64_t number) {
  const auto messages = exchange.messages();
  ASSERT_EQ(std::ssize(messages), world_size);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const auto read = from_message(messages[static_cast<size_t>(rank)]);
    ASSERT_TRUE(read.has_value()) << "of rank " << rank << " in exchange " << number;
    EXPECT_EQ(read->call, announcement_of(rank, number).call);
    EXPECT_EQ(read->numbers, announcement_of(rank, number).numbers);
  }
}

TEST(AnnouncementExchange, GivesAllRanksTheAnnouncementsOfAll) {
  for (const int64_t world_size : {1, 2, 4}) {
    run_ranks(world_size, [&](int64_t rank, const GroupPtr& group) {
      AnnouncementExchange exchange(rank, world_size);
      EXPECT_FALSE(exchange.has_forward());
      for (int64_t number = 0; number < 3; ++number) {
        run(exchange, group, number);
        expect_all(exchange, world_size, number);
      }
    });
  }
}

// Nodes of three ranks and of two: local rank 2 gets the announcements of the smaller node from its local rank 0.
TEST(AnnouncementExchange, GoesThroughTheMemoryOfNodes) {
  run_ranks(5, [&](int64_t rank, const GroupPtr& group) {
    const auto found = node::find_nodes(group, 3);
    AnnouncementExchange exchange(rank, 5);
    int64_t number = 0;
    for (const auto& nodes : {found, found, node::FoundNodes::flat(5), found}) {
      exchange.set_nodes(nodes);
      EXPECT_EQ(exchange.has_forward(), nodes == found);
      for (int repeat = 0; repeat < 3; ++repeat, ++number) {
        run(exchange, group, number);
        expect_all(exchange, 5, number);
      }
    }
  });
}

// Rank 0 starts an exchange that reuses the slot of the first one, which rank 1 has not read yet.
TEST(AnnouncementExchange, ANodesMemoryIsNotOverwrittenBeforeAllHaveReadIt) {
  constexpr int64_t kSlots = node::NodeMemory::kSlots;
  run_ranks(2, [&](int64_t rank, const GroupPtr& group) {
    const auto nodes = node::find_nodes(group, 2);
    std::vector<std::unique_ptr<AnnouncementExchange>> exchanges;
    std::vector<std::unique_ptr<engine::Transport>> transports;
    const auto start = [&](int64_t number) {
      exchanges.push_back(std::make_unique<AnnouncementExchange>(rank, 2));
      transports.push_back(std::make_unique<engine::Transport>(exchange_number(group, number)));
      exchanges.back()->set_nodes(nodes);
      exchanges.back()->set_own(announcement_of(rank, number));
      exchanges.back()->start(*transports.back());
    };
    const auto forward = [&](size_t number) { exchanges[number]->forward(*transports[number]); };
    for (int64_t number = 0; number < kSlots; ++number) start(number);
    wait_for_ranks(group);
    if (rank == 0) {
      forward(0);
      start(kSlots);
    }
    wait_for_ranks(group);
    if (rank == 1) {
      forward(0);
      start(kSlots);
    }
    for (size_t number = 0; number < exchanges.size(); ++number) {
      if (number > 0) forward(number);
      exchanges[number]->wait(*transports[number]);
      expect_all(*exchanges[number], 2, static_cast<int64_t>(number));
    }
  });
}

TEST(AnnouncementExchange, ARankThatGivesUpFailsTheOthersOfItsNode) {
  run_ranks(2, [&](int64_t rank, const GroupPtr& group) {
    AnnouncementExchange exchange(rank, 2);
    exchange.set_nodes(node::find_nodes(group, 2));
    run(exchange, group, 0);
    exchange.give_up();  // Nobody waits for this rank after the exchange.
    run(exchange, group, 1);
    expect_all(exchange, 2, 1);
    engine::Transport transport(exchange_number(group, 2));
    exchange.set_own(announcement_of(rank, 2));
    exchange.start(transport);
    wait_for_ranks(group);
    if (rank == 0) {
      exchange.give_up();
    } else {
      // The announcement of rank 0 may be there already, but rank 0 never ends the exchange.
      EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] {
                    exchange.forward(transport);
                    run(exchange, group, 3);
                  }),
                  HasSubstr("rank 0 of this node cancelled an exchange"));
    }
    wait_for_ranks(group);
  });
}

}  // namespace
}  // namespace narrowcast::collectives

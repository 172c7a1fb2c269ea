// Messages of CPU tensors: the same calls and arithmetic as on a GPU, except that the host waits for collectives.
#include "ops/comm/link/stream_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/recorded_group.h"

namespace narrowcast::collectives {
namespace {

using ::testing::ElementsAre;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kWarmUp = 2;

// Peers in a circle, for as many ranks as possible.
std::optional<LinkPeers> peers_of(int64_t rank, int64_t ranks) {
  return rank < ranks ? std::optional(LinkPeers{(rank + 1) % ranks, (rank + ranks - 1) % ranks}) : std::nullopt;
}

struct Case {
  int64_t world_size;
  int64_t with_peers;
};

class MeasureLinkOnStreamOf : public ::testing::TestWithParam<Case> {};

TEST_P(MeasureLinkOnStreamOf, GivesAllRanksTheSlowestOnesFigures) {
  const auto [world_size, with_peers] = GetParam();
  std::vector<LinkRates> rates(world_size);
  run_ranks(world_size, [&, with_peers = with_peers](int64_t rank, const Group& group) {
    rates[rank] = measure_link_on_stream(group, at::kCPU, peers_of(rank, with_peers),
                                         {.pings = 3, .messages = 2, .message_seconds = 1e9, .most_bytes = 1 << 18});
  });
  for (int64_t rank = 0; rank < world_size; ++rank) {
    EXPECT_GT(rates[rank].cost.seconds_per_hop, 0);
    EXPECT_GT(rates[rank].cost.seconds_per_byte, 0);
    EXPECT_EQ(rates[rank].cost, rates[0].cost);
    EXPECT_EQ(rates[rank].message_bytes, 1 << 18);
    const int64_t pings = 3 + kWarmUp + 1 + 2;  // One before each message.
    EXPECT_EQ(rates[rank].payload_bytes_sent, rank < with_peers ? 2 * 16 * pings + (1 << 16) + 2 * (1 << 18) : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MeasureLinkOnStreamOf, ::testing::Values(Case{2, 2}, Case{3, 3}, Case{3, 2}));

// A message is a collective of bytes. The agreement on a figure is a collective of one number.
TEST(MeasureLinkOnStream, CallsTheSameCollectivesInTheSameOrderOnAllRanks) {
  constexpr int64_t kRanks = 3;
  std::vector<testing::CollectiveRecord> records(kRanks);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto record = std::make_shared<testing::CollectiveRecord>();
    measure_link_on_stream(testing::recorded(group, record), at::kCPU, peers_of(rank, 2),
                           {.pings = 1, .messages = 1, .least_bytes = 64, .most_bytes = 64});
    records[rank] = *record;
  });
  const int64_t pings = 2 * (kWarmUp + 1 + 1);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(records[rank].size(), pings + 1 + 2) << "and the message, and two figures to agree on";
    for (size_t i = 0; i < records[rank].size(); ++i) {
      const bool agrees = records[rank][i].sent.scalar_type() == at::kDouble;
      EXPECT_EQ(agrees, records[0][i].sent.scalar_type() == at::kDouble);
      EXPECT_EQ(records[rank][i].async_op, agrees) << "messages are enqueued on the stream itself";
      if (!agrees && rank == 2) {
        EXPECT_EQ(records[rank][i].sent.numel(), 0);
      }
    }
  }
  const auto& message = records[0][records[0].size() - 2];
  EXPECT_EQ(message.sent.numel(), 64);
  EXPECT_THAT(message.parts_sent, ElementsAre(0, 0, 64)) << "all of it to rank 1";
  EXPECT_THAT(records[1][records[1].size() - 2].parts_sent, ElementsAre(0, 64, 64)) << "to rank 0";
}

}  // namespace
}  // namespace narrowcast::collectives

#include "ops/comm/connections/choice/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/comm/connections/group/connections.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/group.h"
#include "ops/comm/link/link.h"
#include "tests/support/error_message.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using node::NodeLayout;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using ::testing::StartsWith;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr double kGbit = 1.25e8;  // bytes per second
constexpr double kMegabyte = 1e6;

LongLink long_link(double milliseconds, double gbit) {
  return {
      .round_trip_seconds = 1e-3 * milliseconds, .bytes_per_second = kGbit * gbit, .bytes_under_way = 4 * kMegabyte};
}

TEST(ConnectionsFor, HaveTheBandwidthDelayProductUnderWay) {
  EXPECT_EQ(connections_for(long_link(40, 1), 1, 64), 2);    // 1.25 * 5 MB
  EXPECT_EQ(connections_for(long_link(100, 1), 1, 64), 4);   // 1.25 * 12.5 MB
  EXPECT_EQ(connections_for(long_link(200, 1), 1, 64), 8);   // 1.25 * 25 MB
  EXPECT_EQ(connections_for(long_link(40, 10), 1, 64), 16);  // 1.25 * 50 MB
}

TEST(ConnectionsFor, OfSeveralPeersShareTheLink) {
  EXPECT_EQ(connections_for(long_link(200, 10), 1, 64), 64);
  EXPECT_EQ(connections_for(long_link(200, 10), 7, 64), 12);
  EXPECT_EQ(connections_for(long_link(200, 10), 1000, 64), 2) << "so that senders do not wait for announcements";
}

TEST(ConnectionsFor, AreFromTwoToTheMost) {
  EXPECT_EQ(connections_for(long_link(2.1, 1), 1, 64), 2);
  EXPECT_EQ(connections_for(long_link(200, 1), 1, 5), 5);
}

TEST(ConnectionsFor, TakeALowRateAsAtMostThreeTimesIt) {
  EXPECT_EQ(connections_for(long_link(200, 0.1), 1, 64), 3);
  EXPECT_EQ(connections_for(long_link(200, 0.34), 1, 64), 8) << "as for 1 Gbit/s";
  EXPECT_EQ(connections_for(long_link(200, 0.9), 1, 64), 8);
  EXPECT_EQ(connections_for(long_link(200, 0), 1, 64), 8) << "not measured";
}

TEST(TextOfALink, NamesTheRateThatDecides) {
  EXPECT_EQ(text_of(long_link(40, 2)), "round trip 40.0 ms, 2.00 Gbit/s, 4.0 MB in one");
  EXPECT_EQ(text_of(long_link(40, 0.1)),
            "round trip 40.0 ms, 0.10 Gbit/s measured, taken as 0.30 Gbit/s, 4.0 MB in one");
  EXPECT_EQ(text_of(long_link(40, 0)), "round trip 40.0 ms, rate not measured, taken as 1.00 Gbit/s, 4.0 MB in one");
}

TEST(ChooseConnections, IsOneForOneNodeAndOneRank) {
  for (const int64_t ranks : {1, 3}) {
    run_ranks(ranks, [&](int64_t, const Group& group) {
      const Choice choice = choose_connections(group, NodeLayout::of_size(ranks, ranks), {.call = "choosing"});
      EXPECT_EQ(choice.connections, 1);
      EXPECT_EQ(choice.reason, ranks == 1 ? "one rank" : "one node");
    });
  }
}

constexpr double kEveryLinkIsLong = 0;
constexpr double kNoLinkIsLong = 1e9;

// Loopback has a short round trip, unless this machine is busy.
TEST(ChooseConnections, IsTheSameOnAllRanks) {
  for (const double least_round_trip : {kEveryLinkIsLong, kLeastRoundTripSeconds, kNoLinkIsLong}) {
    for (const int64_t node_size : {1, 2}) {
      run_ranks(5, [&](int64_t, const Group& group) {
        const Choice chosen = choose_connections(
            group, NodeLayout::of_size(5, node_size),
            {.call = "choosing", .peers = (5 + node_size - 1) / node_size - 1, .least_round_trip = least_round_trip});
        const auto number = static_cast<double>(chosen.connections);
        const auto reason = static_cast<double>(std::hash<std::string>()(chosen.reason) >> 20);
        EXPECT_EQ(collectives::greatest_of_ranks(group, "comparing", {number, -number, reason, -reason}),
                  std::vector({number, -number, reason, -reason}));
        EXPECT_THAT(chosen.reason, HasSubstr("round trip "));
        if (least_round_trip == kEveryLinkIsLong) {
          EXPECT_GE(chosen.connections, 2);
          EXPECT_THAT(chosen.reason, HasSubstr(" MB in one"));
        } else if (least_round_trip == kNoLinkIsLong) {
          EXPECT_EQ(chosen.connections, 1);
        }
      });
    }
  }
}

// A second measurement would have other figures.
TEST(ChooseConnections, IsKeptForALayoutANumberOfPeersAndABackend) {
  run_ranks(2, [&](int64_t, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(2);
    const Use use{.call = "choosing", .peers = 1, .least_round_trip = kEveryLinkIsLong};
    const auto measured = [&](const Group& asking, const Use& by) {
      const int64_t before = collectives::measuring_bytes_sent(asking);
      choose_connections(asking, layout, by);
      return collectives::measuring_bytes_sent(asking) > before;
    };
    EXPECT_TRUE(measured(group, use));
    EXPECT_FALSE(measured(group, use));
    Use other_use = use;
    other_use.peers = 2;
    EXPECT_TRUE(measured(group, other_use));
    EXPECT_FALSE(measured(group, use)) << "also after another choice";
    const Group other = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
    other->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      group->getBackend(c10::DeviceType::CPU));
    EXPECT_FALSE(measured(other, use));
    EXPECT_EQ(choose_connections(other, layout, use).reason, choose_connections(group, layout, use).reason);
  });
}

TEST(ChooseConnections, RefusesRanksThatDoNotAllChoose) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(3);
    const auto error_of = [&](std::optional<int64_t> count) {
      return testing::error_message<c10::ValueError>([&] { open_connections(group, count, layout); });
    };
    EXPECT_EQ(error_of(rank == 2 ? std::optional<int64_t>(4) : std::nullopt),
              "opening connections: connections differs between ranks: rank 0 has auto, rank 2 has 4");
    EXPECT_EQ(error_of(rank == 2 ? std::nullopt : std::optional<int64_t>(4)),
              "opening connections: connections differs between ranks: rank 0 has 4, rank 2 has auto");
  });
}

// The choice is kept, and needs more files than are left later.
TEST(ProcessesThatChoose, OpenNoMoreConnectionsThanTheirFilesAllow) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    const NodeLayout layout = NodeLayout::flat(2);
    const OpeningOptions options{.least_round_trip = kEveryLinkIsLong};
    const auto open_and_name = [&](std::optional<int64_t> count) {
      open_connections(group, count, layout, options);
      return connections_text(group);
    };
    constexpr const char* kNoMore = "RLIMIT_NOFILE allows no more)";
    {
      const auto limit = rank == 1 ? std::make_unique<testing::OpenFileLimit>(testing::next_descriptor() + 5) : nullptr;
      EXPECT_EQ(open_and_name(std::nullopt), std::string("1 (auto: ") + kNoMore) << "too few to measure the link";
    }
    const std::string chosen = open_and_name(std::nullopt);
    EXPECT_THAT(chosen, AllOf(HasSubstr(" MB in one"), Not(HasSubstr("RLIMIT"))));
    EXPECT_GE(engine::Engine::for_group(group)->carrier().connections, 2);
    {
      const auto limit = rank == 1 ? std::make_unique<testing::OpenFileLimit>(testing::next_descriptor() + 3) : nullptr;
      EXPECT_EQ(open_and_name(std::nullopt), chosen) << "these are open";
      EXPECT_EQ(open_and_name(1), "1");
    }
    {
      const auto limit = rank == 1 ? std::make_unique<testing::OpenFileLimit>(testing::next_descriptor() + 3) : nullptr;
      EXPECT_THAT(open_and_name(std::nullopt), AllOf(StartsWith("1 (auto: "), EndsWith(kNoMore)));
    }
    EXPECT_EQ(open_and_name(std::nullopt), chosen);
  });
  EXPECT_THAT(codes, ::testing::Each(testing::kRankPassed));
}

// The measurement of a long link, on loopback.
TEST(MeasureLongLink, AgreesOnTheRateOfTheSlowestRank) {
  for (const int64_t ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](int64_t, const Group& group) {
      const int64_t before = collectives::measuring_bytes_sent(group);
      const LongLink measured = measure_long_link(group, NodeLayout::flat(ranks), 0.01);
      EXPECT_GT(collectives::measuring_bytes_sent(group), before);
      // Loopback is mostly too fast to be measured.
      EXPECT_TRUE(measured.bytes_per_second == 0 || measured.bytes_per_second > 1e6) << measured.bytes_per_second;
      EXPECT_TRUE(std::isfinite(measured.bytes_per_second));
      EXPECT_GT(measured.round_trip_seconds, 0);
      EXPECT_LT(measured.round_trip_seconds, 1);
      const std::vector<double> own = {measured.bytes_per_second, measured.round_trip_seconds};
      EXPECT_EQ(collectives::greatest_of_ranks(group, "comparing", own), own);
    });
  }
}

}  // namespace
}  // namespace narrowcast::connections

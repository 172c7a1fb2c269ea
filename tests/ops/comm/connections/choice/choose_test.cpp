#include "ops/comm/connections/choice/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ops/comm/connections/group/connections.h"
#include "ops/comm/groups/group.h"
#include "ops/comm/link/link.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using node::NodeLayout;
using testing::run_ranks;
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

TEST(ConnectionsFor, IsOneOnShortLinksAndWithinLimits) {
  EXPECT_EQ(connections_for(long_link(1.9, 100), 1, 64), 1);
  EXPECT_EQ(connections_for(long_link(200, 1), 1, 5), 5);
  EXPECT_EQ(connections_for(long_link(200, 1), 1, 1), 1);
}

TEST(ConnectionsFor, TakeALowRateAsAtMostTwiceOfIt) {
  EXPECT_EQ(connections_for(long_link(200, 0.1), 1, 64), 2);
  EXPECT_EQ(connections_for(long_link(200, 0.5), 1, 64), 8) << "as for 1 Gbit/s";
  EXPECT_EQ(connections_for(long_link(200, 0.9), 1, 64), 8);
  EXPECT_EQ(connections_for(long_link(200, 0), 1, 64), 8) << "not measured";
}

TEST(TextOfALink, NamesTheRateThatDecides) {
  EXPECT_EQ(text_of(long_link(40, 2)), "round trip 40.0 ms, 2.00 Gbit/s, 4.0 MB in one");
  EXPECT_EQ(text_of(long_link(40, 0.1)),
            "round trip 40.0 ms, 0.10 Gbit/s measured, taken as 0.20 Gbit/s, 4.0 MB in one");
  EXPECT_EQ(text_of(long_link(40, 0)), "round trip 40.0 ms, rate not measured, taken as 1.00 Gbit/s, 4.0 MB in one");
}

TEST(ChooseConnections, IsOneForOneNodeAndOneRank) {
  for (const int64_t ranks : {1, 3}) {
    run_ranks(ranks, [&](int64_t, const Group& group) {
      const Choice choice = choose_connections(group, NodeLayout::of_size(ranks, ranks), 64);
      EXPECT_EQ(choice.connections, 1);
      EXPECT_EQ(choice.reason, ranks == 1 ? "one rank" : "one node");
    });
  }
}

// Loopback has a short round trip, unless this machine is busy.
TEST(ChooseConnections, IsTheSameOnAllRanksAndKept) {
  for (const int64_t node_size : {1, 2}) {
    run_ranks(5, [&](int64_t rank, const Group& group) {
      const NodeLayout layout = NodeLayout::of_size(5, node_size);
      const int64_t chosen = choose_connections(group, layout, 64).connections;
      // Without a word between ranks: the others do not take part.
      if (rank == 1) {
        EXPECT_EQ(choose_connections(group, layout, 64).connections, chosen);
      }
      open_connections(group, chosen, layout);  // Throws if the numbers of ranks differ.
      open_connections(group, std::nullopt, layout);
      EXPECT_THAT(connections_text(group), ::testing::StartsWith(std::to_string(chosen) + " (auto: "));
      open_connections(group, 3, layout);
      EXPECT_EQ(connections_text(group), "3");
    });
  }
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

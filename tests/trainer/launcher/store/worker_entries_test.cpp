#include "trainer/launcher/store/worker_entries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {
namespace {

using rendezvous::Progress;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::vector<uint8_t> entry(const std::string& text) { return {text.begin(), text.end()}; }

// A launcher that serves the job's store, and the store as ranks of the job see it.
class WorkerEntriesTest : public ::testing::Test {
 protected:
  const network::ListeningSocket socket = testing::loopback_socket();
  HostedStore hosted{"127.0.0.1", socket};
  c10d::Store& store = *hosted.store();
  c10d::PrefixStore seen_by_ranks{rendezvous::job_prefix("job7"),
                                  network::reach_tcp_store("127.0.0.1", socket.port(), testing::kPatience)};
};

TEST_F(WorkerEntriesTest, TellsRanksWhoHasEnded) {
  EXPECT_FALSE(has_ended_rank(store, "job7"));
  announce_ended_rank(store, "job7", {.node = 5, .rank_on_node = 3});
  seen_by_ranks.wait({rendezvous::kEndedRank}, testing::kPatience);
  EXPECT_EQ(seen_by_ranks.get(rendezvous::kEndedRank), entry("5/3"));
  EXPECT_TRUE(has_ended_rank(store, "job7"));
  hosted.forget_workers();
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::kEndedRank}));
}

// The ranks that work neither end soon nor wait for it.
TEST_F(WorkerEntriesTest, TheEndOfARankThatHasNotMetTheOthersIsNotTold) {
  const auto ends = [&](int64_t node, bool is_new) {
    seen_by_ranks.add("until the last entry is there", 1);
    is_new ? announce_ended_newcomer(store, "job7", {.node = node})
           : announce_ended_rank(store, "job7", {.node = node});
    const bool is_told = has_ended_rank(store, "job7");
    store.deleteKey(rendezvous::job_prefix("job7") + "/" + rendezvous::kEndedRank);
    return is_told;
  };
  announce_places(store, "job7", {.nodes = {{.node = 1}, {.node = 5}}});
  EXPECT_FALSE(ends(5, true)) << "after another host took over, with too few others";
  seen_by_ranks.set(rendezvous::kRegroups, entry(rendezvous::kWhenReady));
  EXPECT_FALSE(ends(5, true));
  EXPECT_TRUE(ends(5, false));
  seen_by_ranks.set(rendezvous::met_key(5), entry("1"));
  EXPECT_TRUE(ends(5, true));
}

TEST_F(WorkerEntriesTest, CountsStarts) {
  EXPECT_EQ(announce_start(store, "job7", {3}), 1);
  EXPECT_EQ(announce_start(store, "job7", {0}), 2);
  EXPECT_EQ(seen_by_ranks.get(rendezvous::kStarts), entry("2"));
  hosted.forget_workers();
  EXPECT_EQ(announce_start(store, "job7", {3}), 1) << "in the next round";
}

TEST_F(WorkerEntriesTest, AStartOnANodeThatTheOthersDoNotWaitForIsNoLoss) {
  const auto tell = [&](const std::string& key, const std::string& value) {
    seen_by_ranks.set(key, entry(value));
    seen_by_ranks.add("until the last entry is there", 1);
  };
  const RankOfNode rank = {.node = 5, .rank_on_node = 1};
  announce_places(store, "job7", {.changes = 3, .nodes = {{.node = 1, .ranks = 1}, {.node = 5, .ranks = 2}}});
  EXPECT_EQ(announce_start(store, "job7", rank), 1) << "all ranks start";
  tell(rendezvous::kRegroups, rendezvous::kWhenReady);
  tell(rendezvous::ready_key(5, 1), "1");
  EXPECT_EQ(announce_start(store, "job7", rank), 1) << "the others work";
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::ready_key(5, 1)}));
  tell(rendezvous::attempt_key("1/2"), "before this node came");
  EXPECT_EQ(announce_start(store, "job7", rank), 1);
  tell(rendezvous::attempt_key("1/3"), "with this node");
  const rendezvous::NodeRanks other = {.node = 1, .ranks = 1};
  announce_places(store, "job7", {.changes = 3, .nodes = {other}, .starting = {{.node = 5, .ranks = 2}}});
  EXPECT_EQ(announce_start(store, "job7", rank), 1) << "rank 0 waits without this node";
  announce_places(store, "job7", {.changes = 3, .nodes = {other, {.node = 5, .ranks = 2}}});
  EXPECT_EQ(announce_start(store, "job7", rank), 2) << "rank 0 waits for this node";
  EXPECT_EQ(announce_start(store, "job7", rank), 2);
  tell(rendezvous::met_key(5), "1");
  EXPECT_EQ(announce_start(store, "job7", rank), 3) << "they have met";
  forget_ranks(store, "job7", {.node = 5, .ranks = 2});
  EXPECT_EQ(announce_start(store, "job7", rank), 3) << "the node is gone";
  EXPECT_EQ(announce_start(store, "job7", {.rank_on_node = 1}), 4) << "nodes do not change";
}

TEST_F(WorkerEntriesTest, AStrangersNumberOfStartsIsAnError) {
  seen_by_ranks.set(rendezvous::kStarts, entry("-7"));
  seen_by_ranks.wait({rendezvous::kStarts}, testing::kPatience);
  EXPECT_THROW(announce_start(store, "job7", {3}), CorruptInputError);
}

TEST_F(WorkerEntriesTest, TellsRanksTheirPlaces) {
  const rendezvous::Places places = {.changes = 1, .nodes = {{.node = 1, .ranks = 2}, {.node = 3, .ranks = 4}}};
  announce_places(store, "job7", places);
  announce_loss(store, "job7");
  seen_by_ranks.wait({rendezvous::kStarts}, testing::kPatience);
  EXPECT_EQ(seen_by_ranks.get_to_str(rendezvous::kPlaces), rendezvous::to_text(places));
  EXPECT_EQ(announce_start(store, "job7", {0}), 2) << "after the loss";
  hosted.forget_workers();
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::kPlaces}));
}

TEST_F(WorkerEntriesTest, ReadsReportsAboutSilentRanks) {
  const auto set = [&](const RankOfNode& rank, const std::string& starts) {
    const std::string key = rendezvous::silent_key(rank.node, rank.rank_on_node);
    seen_by_ranks.set(key, entry(starts));
    seen_by_ranks.wait({key}, testing::kPatience);
  };
  EXPECT_THAT(read_silent_ranks(store, "job7", {{0}, {1}, {2}, {3}}), IsEmpty());
  set({1}, "0");
  set({2}, "12");
  set({3}, "x");
  set({4}, "0");
  set({0, 1}, "0");
  EXPECT_THAT(read_silent_ranks(store, "job7", {{0}, {1}, {2}, {3}}),
              UnorderedElementsAre(Pair(RankOfNode{1}, 0), Pair(RankOfNode{2}, 12)));
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::silent_key(0, 0)})) << "reading writes nothing";
  EXPECT_THAT(read_silent_ranks(store, "job7", {{0, 1}, {1, 1}}), UnorderedElementsAre(Pair(RankOfNode{0, 1}, 0)))
      << "the second rank of its node";
}

TEST_F(WorkerEntriesTest, AStartRemovesReportsAboutTheRank) {
  for (const int64_t rank : {1, 2}) {
    seen_by_ranks.set(rendezvous::silent_key(rank, 0), entry("0"));
    seen_by_ranks.wait({rendezvous::silent_key(rank, 0)}, testing::kPatience);
  }
  announce_start(store, "job7", {1});
  EXPECT_THAT(read_silent_ranks(store, "job7", {{1}, {2}}), UnorderedElementsAre(Pair(RankOfNode{2}, 0)));
}

// Otherwise the new process would seem to stand still, or to meet the others, before it begins to live.
TEST_F(WorkerEntriesTest, AStartRemovesTheSignsOfTheLastProcess) {
  for (const int64_t rank_on_node : {1, 2}) {
    seen_by_ranks.add(rendezvous::signs_key(5, rank_on_node), 1);
    seen_by_ranks.add(rendezvous::ready_key(5, rank_on_node), 1);
  }
  announce_start(store, "job7", {.node = 5, .rank_on_node = 1});
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::signs_key(5, 1)}));
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::ready_key(5, 1)}));
  EXPECT_TRUE(seen_by_ranks.check({rendezvous::signs_key(5, 2)}));
  EXPECT_TRUE(seen_by_ranks.check({rendezvous::ready_key(5, 2)}));
}

TEST_F(WorkerEntriesTest, ANodeIsReadyWhenAllItsRanksAre) {
  const rendezvous::NodeRanks node = {.node = 5, .ranks = 2};
  const auto progress = [&] { return progress_of(store, "job7", node); };
  EXPECT_EQ(progress(), Progress::kStart);
  for (const char* const how : {"1", rendezvous::kWhenReady}) {
    seen_by_ranks.set(rendezvous::kRegroups, entry(how));
    seen_by_ranks.add("until the last entry is there", 1);
    EXPECT_EQ(progress(), how == rendezvous::kWhenReady ? Progress::kStart : Progress::kMet) << "nobody may tell it";
  }
  seen_by_ranks.add(rendezvous::ready_key(5, 0), 1);
  EXPECT_EQ(progress(), Progress::kStart);
  seen_by_ranks.add(rendezvous::ready_key(5, 1), 1);
  EXPECT_EQ(progress(), Progress::kReady);
  seen_by_ranks.add(rendezvous::met_key(5), 1);
  EXPECT_EQ(progress(), Progress::kMet);
  forget_ranks(store, "job7", node);
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::ready_key(5, 0)}));
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::ready_key(5, 1)}));
  EXPECT_FALSE(seen_by_ranks.check({rendezvous::met_key(5)}));
}

TEST_F(WorkerEntriesTest, TellsRanksAfterWhichTimeANodeIsLost) {
  announce_node_silence(store, "job7", std::chrono::milliseconds(30000));
  seen_by_ranks.wait({rendezvous::kNodeSilence}, testing::kPatience);
  EXPECT_EQ(seen_by_ranks.get(rendezvous::kNodeSilence), entry("30000"));
}

TEST_F(WorkerEntriesTest, RanksTellWhichNumberTheirNumberMustDivide) {
  EXPECT_EQ(divided_by_ranks(store, "job7"), 0) << "any number of ranks works";
  seen_by_ranks.set(rendezvous::kRanksDivide, entry("18"));
  seen_by_ranks.add("until the last entry is there", 1);
  EXPECT_EQ(divided_by_ranks(store, "job7"), 18);
  seen_by_ranks.set(rendezvous::kRanksDivide, entry("-18"));
  seen_by_ranks.add("until the last entry is there", 1);
  EXPECT_EQ(divided_by_ranks(store, "job7"), 0);
}

TEST(ParseStarts, TakesNumbersFromZeroUp) {
  EXPECT_EQ(parse_starts("0"), 0);
  EXPECT_EQ(parse_starts("41"), 41);
  for (const char* const text : {"", "-1", "+1", " 1", "1 ", "1x", "none", "99999999999999999999"}) {
    EXPECT_FALSE(parse_starts(text)) << text;
  }
}

}  // namespace
}  // namespace narrowcast::launcher

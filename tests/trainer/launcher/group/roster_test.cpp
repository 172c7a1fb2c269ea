#include "trainer/launcher/group/roster.h"

#include <gtest/gtest.h>

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

Clock::time_point at(int64_t time) { return Clock::time_point(milliseconds(time)); }

NodeView view_of(int64_t ticket, int64_t beats) { return {.ticket = ticket, .beats = beats}; }

TEST(Roster, TellsWhoIsNew) {
  Roster roster(milliseconds(1000));
  EXPECT_EQ(roster.look(at(0), {view_of(1, 1)}).size(), 1U);
  const auto new_ones = roster.look(at(100), {view_of(1, 1), view_of(2, 1)});
  ASSERT_EQ(new_ones.size(), 1U);
  EXPECT_EQ(new_ones[0].ticket, 2);
}

TEST(Roster, GivesUpWhoIsSilentForTooLong) {
  Roster roster(milliseconds(1000));
  roster.look(at(0), {view_of(1, 1), view_of(2, 1)});
  roster.look(at(900), {view_of(1, 2), view_of(2, 1)});
  EXPECT_FALSE(roster.is_lost(2));
  roster.look(at(1001), {view_of(1, 2), view_of(2, 1)});
  EXPECT_FALSE(roster.is_lost(1));
  EXPECT_TRUE(roster.is_lost(2));
  roster.look(at(1002), {view_of(1, 2), view_of(2, 2)});
  EXPECT_TRUE(roster.is_lost(2));  // for good: its place may be taken
}

TEST(Roster, ExpectsNothingOfThoseThatLeft) {
  Roster roster(milliseconds(1000));
  NodeView gone = view_of(2, 1);
  gone.left = true;
  roster.look(at(0), {view_of(1, 1), gone});
  roster.look(at(5000), {view_of(1, 2), gone});
  EXPECT_FALSE(roster.is_lost(2));
}

TEST(Roster, KnowsReportsByRound) {
  Roster roster(milliseconds(1000));
  NodeView view = view_of(1, 1);
  view.report = RoundReport{.round = 3, .report = {.stopped_ranks = 7}};
  roster.look(at(0), {view});
  EXPECT_EQ(roster.report(1, 3)->stopped_ranks, 7);
  EXPECT_FALSE(roster.report(1, 4));
}

TEST(Roster, TakesASignalForAllRoundsAfterIt) {
  Roster roster(milliseconds(1000));
  NodeView view = view_of(1, 1);
  view.report = RoundReport{.round = 3, .report = {.end = NodeReport::End::kFailed, .signal = 15, .stopped_ranks = 7}};
  roster.look(at(0), {view});
  EXPECT_EQ(roster.report(1, 3)->end, NodeReport::End::kFailed);
  EXPECT_EQ(roster.report(1, 4)->end, NodeReport::End::kInterrupted);
  EXPECT_EQ(roster.report(1, 4)->signal, 15);
  EXPECT_EQ(roster.report(1, 4)->stopped_ranks, 0);
  EXPECT_FALSE(roster.report(1, 2));
}

TEST(Roster, KnowsWhetherTheOthersLeft) {
  Roster roster(milliseconds(1000));
  NodeView gone = view_of(2, 1);
  roster.look(at(0), {view_of(1, 1), gone, view_of(3, 1)});
  EXPECT_FALSE(roster.others_left());
  gone.left = true;
  roster.look(at(2000), {view_of(1, 2), gone, view_of(3, 1)});  // the third is lost
  EXPECT_TRUE(roster.others_left());
}

}  // namespace
}  // namespace narrowcast::launcher

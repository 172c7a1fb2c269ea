#include "trainer/train/training/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/ddp/recovery/stop_agreement.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;

OuterOptimizer::Notes notes(const WindowOfRank& window, int64_t rank, int signal = 0) {
  return WindowOfRounds::notes_of(window, rank, [signal] { return signal; });
}

// Group 0 has two ranks, so its numbers count twice.
TEST(WindowOfRounds, AddsUpTheRanksOfAllItsRounds) {
  WindowOfRounds window(/*ranks=*/4, /*groups=*/3);
  EXPECT_FALSE(window.has_steps());
  const OuterOptimizer::Notes of_two = WindowOfRounds::combined(
      {notes({.loss = 6, .steps = 3, .batches = 4, .peak_memory_bytes = 50}, 0),
       notes({.loss = 8, .steps = 3, .batches = 4, .nonfinite_steps = 1, .peak_memory_bytes = 40}, 1)});
  window.add({.steps = 4,
              .groups = {0, 2},
              .notes = {of_two, notes({.loss = 10, .steps = 4, .batches = 4, .peak_memory_bytes = 70}, 3)}},
             nullptr);
  window.add(
      {.steps = 8,
       .groups = {1},
       .notes = {notes({.loss = 6, .steps = 2, .batches = 4, .skipped_in_a_row = 2, .peak_memory_bytes = 60}, 2)}},
      nullptr);
  EXPECT_TRUE(window.has_steps());
  const Window sum = window.take_window();
  EXPECT_TRUE(sum.has_loss);
  EXPECT_DOUBLE_EQ(sum.loss, 30.0 / 12);
  EXPECT_DOUBLE_EQ(sum.batches, 4);
  EXPECT_EQ(sum.peak_memory_bytes, 70);
  EXPECT_THAT(sum.rounds_by_group, ElementsAre(1, 1, 1));
  ASSERT_TRUE(sum.skipped);
  EXPECT_EQ(sum.skipped->in_a_row, 2);
  EXPECT_THAT(sum.skipped->nonfinite_ranks, ElementsAre(1));
  EXPECT_FALSE(window.has_steps());
  const Window empty = window.take_window();
  EXPECT_FALSE(empty.skipped);
  EXPECT_THAT(empty.rounds_by_group, ElementsAre(0, 0, 0));
}

// A group that skipped steps and then took some has no skipped steps in a row.
TEST(WindowOfRounds, HasTheLastSkippedStepsOfEachGroup) {
  WindowOfRounds window(2, 2);
  const auto add = [&](int64_t of_0, int64_t of_1) {
    window.add(
        {.groups = {0, 1}, .notes = {notes({.skipped_in_a_row = of_0}, 0), notes({.skipped_in_a_row = of_1}, 1)}},
        nullptr);
  };
  add(9, 0);
  add(0, 3);
  EXPECT_EQ(window.take_window().skipped->in_a_row, 3);
  add(9, 3);
  add(0, 0);
  EXPECT_FALSE(window.take_window().skipped);
}

// Newcomers that cannot be taken in yet must not hide a later signal.
TEST(WindowOfRounds, ASignalStaysAndNewcomersAreSaidOnce) {
  WindowOfRounds window(2, 2);
  EXPECT_EQ(WindowOfRounds::notes_of({}, 0, nullptr).back(), 0);
  window.add({.groups = {0}, .notes = {notes({}, 0, recovery::kNewcomers)}}, nullptr);
  EXPECT_EQ(window.take_signal(), recovery::kNewcomers);
  EXPECT_EQ(window.take_signal(), 0);
  window.add({.groups = {0, 1}, .notes = {notes({}, 0, recovery::kNewcomers), notes({}, 1, SIGTERM)}}, nullptr);
  EXPECT_EQ(window.take_signal(), SIGTERM);
  EXPECT_EQ(window.take_signal(), SIGTERM);
}

// Each rank of a group may be asked, by another signal or by newcomers.
TEST(WindowOfRounds, AGroupSendsTheSignalOfAnyOfItsRanks) {
  const auto signal_of = [](std::vector<int> asked) {
    std::vector<OuterOptimizer::Notes> ranks;
    for (const int signal : asked) ranks.push_back(notes({}, 0, signal));
    return WindowOfRounds::combined(ranks).back();
  };
  EXPECT_EQ(signal_of({0, 0}), 0);
  EXPECT_EQ(signal_of({0, SIGTERM}), SIGTERM);
  EXPECT_EQ(signal_of({recovery::kNewcomers, SIGTERM}), SIGTERM);
  EXPECT_EQ(signal_of({0, recovery::kNewcomers}), recovery::kNewcomers);
}

struct Absences : reporting::TrainingObserver {
  void on_step(const reporting::StepReport& /*report*/) override {}
  void on_evaluation(const reporting::EvaluationReport& /*report*/) override {}
  void on_absence(const reporting::AbsenceReport& report) override {
    EXPECT_EQ(report.group, 1);
    EXPECT_EQ(report.is_back, seen.size() % 2 == 1);
    seen.emplace_back(report.step, report.missed);
  }
  std::vector<std::pair<int64_t, int64_t>> seen;
};

TEST(WindowOfRounds, ReportsGroupsThatAreAwayForLong) {
  WindowOfRounds window(2, 2);
  Absences absences;
  int64_t steps = 0;
  const auto add = [&](int64_t rounds, const std::vector<int64_t>& groups) {
    const std::vector<OuterOptimizer::Notes> own(groups.size(), notes({}, 0));
    for (int64_t i = 0; i < rounds; ++i) window.add({.steps = steps += 4, .groups = groups, .notes = own}, &absences);
  };
  add(4, {0});
  add(1, {0, 1});
  EXPECT_THAT(absences.seen, ElementsAre());
  add(7, {0});
  window.add({.steps = steps, .groups = {1}, .notes = {notes({}, 1)}}, &absences);  // All ranks meet.
  EXPECT_THAT(absences.seen, ElementsAre(std::pair(40, 5)));
  add(2, {0});
  add(2, {0, 1});
  EXPECT_THAT(absences.seen, ElementsAre(std::pair(40, 5), std::pair(60, 9)));
  EXPECT_THAT(window.take_window().rounds_by_group, ElementsAre(16, 3));
}

}  // namespace
}  // namespace narrowcast::training

#include "trainer/train/training/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "trainer/ddp/recovery/stop_agreement.h"

namespace narrowcast::training {
namespace {

using ::testing::ElementsAre;

OuterOptimizer::Notes notes(const WindowOfRank& window, int64_t rank, int signal = 0) {
  return WindowOfRounds::notes_of(window, rank, [signal] { return signal; });
}

TEST(WindowOfRounds, AddsUpTheGroupsOfAllItsRounds) {
  WindowOfRounds window(3);
  EXPECT_FALSE(window.has_steps());
  window.add({.steps = 4,
              .groups = {0, 2},
              .notes = {notes({.loss = 6, .steps = 3, .batches = 4, .nonfinite_steps = 1, .peak_memory_bytes = 50}, 0),
                        notes({.loss = 10, .steps = 4, .batches = 4, .peak_memory_bytes = 70}, 2)}});
  window.add(
      {.steps = 8,
       .groups = {1},
       .notes = {notes({.loss = 4, .steps = 3, .batches = 4, .skipped_in_a_row = 2, .peak_memory_bytes = 60}, 1)}});
  EXPECT_TRUE(window.has_steps());
  const Window sum = window.take_window();
  EXPECT_TRUE(sum.has_loss);
  EXPECT_DOUBLE_EQ(sum.loss, 2);
  EXPECT_DOUBLE_EQ(sum.batches, 4);
  EXPECT_EQ(sum.peak_memory_bytes, 70);
  ASSERT_TRUE(sum.skipped);
  EXPECT_EQ(sum.skipped->in_a_row, 2);
  EXPECT_THAT(sum.skipped->nonfinite_ranks, ElementsAre(0));
  EXPECT_FALSE(window.has_steps());
  EXPECT_FALSE(window.take_window().skipped);
}

// Newcomers that cannot be taken in yet must not hide a later signal.
TEST(WindowOfRounds, ASignalStaysAndNewcomersAreSaidOnce) {
  WindowOfRounds window(2);
  EXPECT_EQ(WindowOfRounds::notes_of({}, 0, nullptr).back(), 0);
  window.add({.groups = {0}, .notes = {notes({}, 0, recovery::kNewcomers)}});
  EXPECT_EQ(window.take_signal(), recovery::kNewcomers);
  EXPECT_EQ(window.take_signal(), 0);
  window.add({.groups = {0, 1}, .notes = {notes({}, 0, recovery::kNewcomers), notes({}, 1, SIGTERM)}});
  EXPECT_EQ(window.take_signal(), SIGTERM);
  EXPECT_EQ(window.take_signal(), SIGTERM);
}

}  // namespace
}  // namespace narrowcast::training

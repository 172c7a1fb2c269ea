// Trainings with a quorum of outer steps: what a late rank, and the others, report and decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/quorum_runs.h"

namespace narrowcast::training::quorums {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using testing::TemporaryFolder;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// All ranks report and decide the same, except bytes and times.
void expect_same_reports(const std::vector<SeenByRank>& seen) {
  for (const SeenByRank& own : seen) {
    ASSERT_EQ(own.steps.size(), seen[0].steps.size());
    for (size_t i = 0; i < own.steps.size(); ++i) {
      const reporting::StepReport& report = own.steps[i];
      const reporting::StepReport& first = seen[0].steps[i];
      EXPECT_EQ(report.step, first.step);
      EXPECT_TRUE(report.loss == first.loss || (std::isnan(report.loss) && std::isnan(first.loss)));
      EXPECT_EQ(report.outer->rounds_by_group, first.outer->rounds_by_group);
      EXPECT_EQ(report.peak_memory_bytes, first.peak_memory_bytes);
      EXPECT_EQ(report.skipped.has_value(), first.skipped.has_value());
      if (report.skipped && first.skipped) {
        EXPECT_EQ(report.skipped->in_a_row, first.skipped->in_a_row);
        EXPECT_EQ(report.skipped->nonfinite_ranks, first.skipped->nonfinite_ranks);
      }
    }
    ASSERT_EQ(own.absences.size(), seen[0].absences.size());
    for (size_t i = 0; i < own.absences.size(); ++i) {
      EXPECT_EQ(own.absences[i].step, seen[0].absences[i].step);
      EXPECT_EQ(own.absences[i].group, seen[0].absences[i].group);
      EXPECT_EQ(own.absences[i].missed, seen[0].absences[i].missed);
    }
    EXPECT_EQ(own.result.diverged_at, seen[0].result.diverged_at);
    EXPECT_EQ(own.result.validation_loss, seen[0].result.validation_loss);
    EXPECT_EQ(own.result.preempted.has_value(), seen[0].result.preempted.has_value());
  }
}

// Any rank may be late, also the one that reports to people. It has missed eight rounds when it comes.
class LateRankTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LateRankTest, ::testing::Values(0, 1, 2));

TEST_P(LateRankTest, ReportsWhatTheOthersReport) {
  const int64_t late = GetParam();
  const Trained trained = train_on({.before = holds_until_reported({late}, 8 * kEvery)});
  const std::vector<SeenByRank>& seen = trained.seen;
  expect_same_reports(seen);
  std::vector<int64_t> steps;
  for (const auto& report : seen[0].steps) steps.push_back(report.step);
  EXPECT_THAT(steps, ElementsAre(8, 16, 24, 32, 40, 48, 56, 60));
  for (size_t i = 0; i < 4; ++i) {
    for (int64_t group = 0; group < 3; ++group) {
      EXPECT_EQ(seen[0].steps[i].outer->rounds_by_group.at(group), group == late ? 0 : 2) << "report " << i;
    }
  }
  ASSERT_GE(seen[0].absences.size(), 1);
  EXPECT_EQ(seen[0].absences[0].group, late);
  EXPECT_EQ(seen[0].absences[0].step, 5 * kEvery);
  EXPECT_EQ(seen[0].absences[0].missed, 5);
  EXPECT_FALSE(seen[0].absences[0].is_back);
  for (const SeenByRank& own : seen) {
    EXPECT_EQ(own.result.validation_loss, own.loss_of_model) << "the evaluated model is the result";
  }
  EXPECT_LE(seen[late].passes, 60 - 6 * kEvery);
  EXPECT_LT(seen[0].steps.back().loss, seen[0].steps.front().loss);
  expect_equal_models(trained.models, {trained.models[0]});
}

// The late rank ends rounds 3 to 8 in one step. Its time is divided equally among them.
TEST_P(LateRankTest, DividesItsTimeAmongTheRoundsThatItCatchesUp) {
  const int64_t late = GetParam();
  const Trained trained = train_on({.before = holds_until_reported({late}, 8 * kEvery)});
  const auto& steps = trained.seen[late].steps;
  const double share = steps[3].seconds - steps[2].seconds;
  EXPECT_GT(share, 0);
  EXPECT_NEAR(steps[2].seconds - steps[1].seconds, share, 0.01 * share);
}

// Rank 1's loss is not a number in its second round, while rank 2 is late for both.
TEST(QuorumTraining, DivergesOnAllRanks) {
  const auto held = holds_until_reported({2}, 2 * kEvery);
  QuorumRun run = {.before = [&](Places& places, int64_t rank, int64_t pass) {
    held(places, rank, pass);
    return rank == 1 && pass > kEvery ? kNotANumber : 1.0;
  }};
  run.options.skip_nonfinite_steps = false;
  const Trained trained = train_on(run);
  expect_same_reports(trained.seen);
  for (const SeenByRank& own : trained.seen) {
    EXPECT_EQ(own.result.diverged_at, 2 * kEvery);
    EXPECT_THAT(own.steps, SizeIs(1));
  }
}

// Rank 1 skips all of its steps. Rank 2 takes its own, and is late.
TEST(QuorumTraining, GivesUpOnAllRanksIfOneSkipsItsSteps) {
  const auto held = holds_until_reported({2}, 4 * kEvery);
  QuorumRun run = {.before = [&](Places& places, int64_t rank, int64_t pass) {
    held(places, rank, pass);
    return rank == 1 ? kNotANumber : 1.0;
  }};
  run.options.max_skipped_steps = 2 * kEvery + 1;
  const Trained trained = train_on(run);
  expect_same_reports(trained.seen);
  for (const SeenByRank& own : trained.seen) {
    EXPECT_EQ(own.result.diverged_at, 4 * kEvery);
    ASSERT_TRUE(own.result.gave_up_after.has_value());
    EXPECT_EQ(own.result.gave_up_after->in_a_row, 4 * kEvery);
    EXPECT_THAT(own.result.gave_up_after->nonfinite_ranks, ElementsAre(1));
  }
}

// Rank 1 skips many steps, and takes the last ones before the report.
TEST(QuorumTraining, GoesOnIfTheLastStepsWereTaken) {
  QuorumRun run = {.before = [](Places&, int64_t rank, int64_t pass) {
    return rank == 1 && pass <= 3 * kEvery ? kNotANumber : 1.0;
  }};
  run.options.max_skipped_steps = kEvery;
  run.options.log_every = 4 * kEvery;
  run.outer = quorum_of(2).grace_seconds(400);
  const Trained trained = train_on(run);
  EXPECT_FALSE(trained.seen[0].result.diverged_at.has_value());
  EXPECT_EQ(trained.seen[0].steps.back().step, 60);
}

// The others stop after the third round, and wait for the late rank to save.
TEST(QuorumTraining, ASignalStopsAllRanksAlsoTheLateOne) {
  for (const int64_t asked : {0, 1}) {
    const TemporaryFolder folder;
    QuorumRun run = {
        .before = holds_until_reported({2}, 3 * kEvery),
        .signal = [&](int64_t rank, int64_t pass) { return rank == asked && pass > 2 * kEvery ? SIGTERM : 0; },
        .folder = folder.path()};
    run.options.log_every = kEvery;
    const Trained trained = train_on(run);
    expect_same_reports(trained.seen);
    for (const SeenByRank& own : trained.seen) {
      ASSERT_TRUE(own.result.preempted.has_value());
      EXPECT_EQ(own.result.preempted->step, 3 * kEvery);
      EXPECT_EQ(own.result.preempted->signal, SIGTERM);
      EXPECT_TRUE(own.result.preempted->is_saved);
    }
    EXPECT_THAT(checkpoint::checkpoint_steps(folder.path()), ElementsAre(3 * kEvery));
    run.before = [](Places&, int64_t, int64_t) { return 1.0; };
    run.signal = nullptr;
    run.from = 3 * kEvery;
    const Trained resumed = train_on(run, 2);
    EXPECT_EQ(resumed.seen[0].steps.back().step, 60);
    expect_equal_models(resumed.models, {resumed.models[0]});
  }
}

// Its message has the signal. At the latest, the others get it at a checkpoint.
TEST(QuorumTraining, ASignalOfALateRankStopsAllRanks) {
  const TemporaryFolder folder;
  const auto held = holds_until_reported({2}, 3 * kEvery);
  QuorumRun run = {.before =
                       [&](Places& places, int64_t rank, int64_t pass) {
                         held(places, rank, pass);
                         if (rank < 2 && pass == 4 * kEvery) {
                           places.passes.wait_until([](const auto& passes) { return passes[2] > kEvery; });
                         }
                         return 1.0;
                       },
                   .signal = [](int64_t rank, int64_t pass) { return rank == 2 && pass > 1 ? SIGUSR1 : 0; },
                   .folder = folder.path(),
                   .checkpoint_every = 6 * kEvery};
  run.options.log_every = kEvery;
  const Trained trained = train_on(run);
  expect_same_reports(trained.seen);
  for (const SeenByRank& own : trained.seen) {
    ASSERT_TRUE(own.result.preempted.has_value());
    EXPECT_EQ(own.result.preempted->step, trained.seen[0].result.preempted->step);
    EXPECT_LE(own.result.preempted->step, 7 * kEvery);
    EXPECT_EQ(own.result.preempted->signal, SIGUSR1);
  }
}

// Groups of two ranks: {0, 1} and {2, 3}. Both ranks of the second one are late together, and rank 1 is asked.
TEST(QuorumTraining, AnyRankOfAGroupMayBeAskedToStop) {
  const TemporaryFolder folder;
  QuorumRun run = {.ranks = 4,
                   .outer = quorum_of(1),
                   .before = holds_until_reported({2, 3}, 3 * kEvery),
                   .signal = [](int64_t rank, int64_t pass) { return rank == 1 && pass > 2 * kEvery ? SIGTERM : 0; },
                   .folder = folder.path()};
  run.ddp.local({.group_size = 2});
  run.options.log_every = kEvery;
  const Trained trained = train_on(run);
  expect_same_reports(trained.seen);
  for (const SeenByRank& own : trained.seen) {
    ASSERT_TRUE(own.result.preempted.has_value());
    EXPECT_EQ(own.result.preempted->step, 3 * kEvery);
  }
}

TEST(QuorumTraining, GroupsOfTwoRanksMoveTogether) {
  for (const std::vector<int64_t>& late : std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}}) {
    QuorumRun run = {.ranks = 4, .outer = quorum_of(1), .before = holds_until_reported(late, 6 * kEvery)};
    run.ddp.local({.group_size = 2});
    const Trained trained = train_on(run);
    expect_same_reports(trained.seen);
    expect_equal_models(trained.models, {trained.models[0]});
    EXPECT_EQ(trained.seen[late[0]].passes, trained.seen[late[1]].passes);
    EXPECT_EQ(trained.seen[0].steps[1].outer->rounds_by_group.at(late[0] / 2), 0);
    EXPECT_EQ(trained.seen[0].result.validation_loss, trained.seen[0].loss_of_model);
  }
}

// Three ranks in groups of two and one: each rank's losses count once, as without a quorum.
TEST(QuorumTraining, LossesAreMeansOverRanks) {
  QuorumRun run = {.outer = quorum_of(2)};
  run.ddp.local({.group_size = 2});
  const Trained of_all = train_on(run);
  run.outer->quorum(std::nullopt);
  const Trained expected = train_on(run);
  ASSERT_EQ(of_all.seen[0].steps.size(), expected.seen[0].steps.size());
  EXPECT_NEAR(of_all.seen[0].steps[0].loss, expected.seen[0].steps[0].loss, 1e-5);
  EXPECT_TRUE(expected.seen[0].steps[0].outer->rounds_by_group.empty());
}

// The size of buckets is chosen in the first steps, and not only known at the end of a round.
TEST(QuorumTraining, ReportsTheStepAfterWhichTheSizeOfBucketsWasChosen) {
  QuorumRun run = {.ranks = 2, .width = 224, .outer = quorum_of(2)};
  run.options.steps = 12;
  run.outer->sync_every(6);
  run.ddp.bucket_cap_mb(std::nullopt);
  const Trained of_quorum = train_on(run);
  run.outer->quorum(std::nullopt);
  const Trained expected = train_on(run);
  ASSERT_THAT(expected.seen[0].buckets, SizeIs(1));
  ASSERT_THAT(of_quorum.seen[0].buckets, SizeIs(1));
  EXPECT_EQ(of_quorum.seen[0].buckets[0].step, expected.seen[0].buckets[0].step);
}

}  // namespace
}  // namespace narrowcast::training::quorums

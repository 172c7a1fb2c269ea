// Trainings with a quorum of outer steps that end and go on later: from checkpoints, with newcomers, with lost ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/quorum_runs.h"
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/training/recovery.h"

namespace narrowcast::training::quorums {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::TemporaryFolder;

const auto kNobodyIsHeld = [](Places&, int64_t, int64_t) { return 1.0; };

// Nobody is late, because the grace is long.
QuorumRun on_time(WireFormat format, int64_t group_size) {
  QuorumRun run = {.ranks = 4, .options = options_of_quorum(40)};
  OuterOptions outer = quorum_of(1, format).grace_seconds(400);
  if (format != WireFormat::kFp32) {
    hooks::WireOptions wire = outer.wire();
    wire.stochastic_rounding_seed = 7;
    outer.wire(wire);
  }
  run.outer = outer;
  run.ddp.local({.group_size = group_size});
  return run;
}

TEST(QuorumResume, HasTheSameBits) {
  for (const int64_t group_size : {1, 2}) {
    for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128}) {
      const TemporaryFolder folder;
      QuorumRun run = on_time(format, group_size);
      run.folder = folder.path();
      run.checkpoint_every = 2 * kEvery;
      const Trained whole = train_on(run);
      for (const int64_t from : {16, 24, 40}) {
        run.from = from;
        const Trained resumed = train_on(run, 2);
        expect_equal_models(resumed.models, whole.models);
        EXPECT_EQ(resumed.seen[0].result.validation_loss, whole.seen[0].result.validation_loss);
        EXPECT_EQ(resumed.seen[0].result.training_loss, whole.seen[0].result.training_loss);
      }
    }
  }
}

// Rank 2 is late when the checkpoint is written, which averages its message.
TEST(QuorumResume, AfterACheckpointWithALateRank) {
  const TemporaryFolder folder;
  QuorumRun run = {.before = holds_until_reported({2}, 4 * kEvery), .folder = folder.path(), .checkpoint_every = 16};
  train_on(run);
  run.before = kNobodyIsHeld;
  run.from = 16;
  const Trained resumed = train_on(run, 2);
  EXPECT_EQ(resumed.seen[0].steps.back().step, 60);
  EXPECT_EQ(resumed.seen[0].result.validation_loss, resumed.seen[2].loss_of_model);
  expect_equal_models(resumed.models, {resumed.models[0]});
}

// The worlds have one group, as many groups as the quorum needs, and more.
TEST(QuorumResume, InAnotherWorldAllRanksBeginWithTheOuterParameters) {
  const TemporaryFolder folder;
  QuorumRun run = {.before = holds_until_reported({2}, 4 * kEvery), .folder = folder.path(), .checkpoint_every = 16};
  run.outer = quorum_of(2, WireFormat::kInt8B128);
  const Trained whole = train_on(run);
  run.before = kNobodyIsHeld;
  run.from = 16;
  for (const int64_t ranks : {1, 2, 4}) {
    run.ranks = ranks;
    run.outer->quorum(std::min<int64_t>(2, ranks));
    const Trained resumed = train_on(run, 2);
    EXPECT_EQ(resumed.seen[0].steps.back().step, 60);
    EXPECT_LT(resumed.seen[0].steps.back().loss, whole.seen[0].steps.front().loss);
    EXPECT_TRUE(std::isfinite(resumed.seen[0].result.validation_loss.value()));
    expect_equal_models(resumed.models, {resumed.models[0]});
  }
  run.ranks = 4;
  run.ddp.local({.group_size = 2});
  const Trained in_groups = train_on(run, 2);
  expect_equal_models(in_groups.models, {in_groups.models[0]});
}

// Rank 0 has seen newcomers while rank 2 is late. All ranks stop after the same step, with a checkpoint.
TEST(QuorumResume, TakesInNewcomersWhileARankIsLate) {
  const TemporaryFolder folder;
  QuorumRun run = {
      .before = holds_until_reported({2}, 3 * kEvery),
      .signal = [](int64_t rank, int64_t pass) { return rank == 0 && pass > 2 * kEvery ? recovery::kNewcomers : 0; },
      .folder = folder.path()};
  run.options.log_every = kEvery;
  const Trained before = train_on(run);
  for (const SeenByRank& own : before.seen) {
    EXPECT_TRUE(own.result.takes_in_newcomers);
    EXPECT_FALSE(own.result.preempted.has_value());
    EXPECT_EQ(own.steps.back().step, 3 * kEvery);
  }
  EXPECT_THAT(checkpoint::checkpoint_steps(folder.path()), ElementsAre(3 * kEvery));
  run.before = kNobodyIsHeld;
  run.signal = nullptr;
  run.from = 3 * kEvery;
  run.ranks = 4;
  const Trained with_newcomer = train_on(run, 2);
  EXPECT_EQ(with_newcomer.seen[3].steps.back().step, 60);
  expect_equal_models(with_newcomer.models, {with_newcomer.models[0]});
}

// All ranks lose a peer, rank 2 while it is late. Their parameters differ, so they go back to the checkpoint.
TEST(QuorumResume, GoesBackToTheCheckpointIfARankIsLostWhileAnotherOneIsLate) {
  const TemporaryFolder folder;
  std::vector<std::optional<SurvivingState>> surviving(3);
  QuorumRun run = {.before =
                       [](Places& places, int64_t rank, int64_t /*pass*/) {
                         const int64_t reported = places.reports.of(rank);
                         if (rank == 2 && reported >= 12) places.reports.wait_for_others(2, 20);
                         TORCH_CHECK_WITH(DistBackendError, reported < (rank == 2 ? 12 : 20), "rank 0: rank 1 is lost");
                         return 1.0;
                       },
                   .folder = folder.path(),
                   .checkpoint_every = 12,
                   .surviving = &surviving,
                   .fails = true};
  run.options.log_every = kEvery;
  train_on(run);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::string why_nothing;
    EXPECT_FALSE(share_states(group, surviving[rank == 0 ? 0 : 2], &why_nothing).has_value());
    EXPECT_THAT(why_nothing, HasSubstr("the parameters differ between ranks"));
  });
  EXPECT_THAT(checkpoint::checkpoint_steps(folder.path()), ElementsAre(12));
  run.before = kNobodyIsHeld;
  run.surviving = nullptr;
  run.fails = false;
  run.from = 12;
  run.ranks = 2;
  const Trained resumed = train_on(run, 2);
  EXPECT_EQ(resumed.seen[1].steps.back().step, 60);
  expect_equal_models(resumed.models, {resumed.models[0]});
}

}  // namespace
}  // namespace narrowcast::training::quorums

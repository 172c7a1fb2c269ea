// Tests the state of an outer optimizer over a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/outer_optimizer.h>
#include "ops/codec/wire_format.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

// Sparse formats exclude a momentum and a mix.
OuterOptions streaming_options(WireFormat format = WireFormat::kInt4B32) {
  const bool is_sparse = codec::wire::is_sparse(format);
  return OuterOptions()
      .sync_every(6)
      .optimizer(is_sparse ? OuterKind::kSgd : OuterKind::kNesterov)
      .fragments(2)
      .overlap_steps(2)
      .mix(is_sparse ? 0 : 0.5)
      .warmup_steps(2)
      .wire(outer_wire(format));
}

// In the warm-up there are no gradients, so that the ranks stay equal.
void take_step(SmallTraining& training, OuterOptimizer& outer) {
  if (outer.is_warming_up()) {
    outer.step();
  } else {
    training.step(outer);
  }
}

// Saves at every step: in the warm-up, in the middle of a round, with an exchange under way and right after one.
TEST(OuterState, AResumedTrainingGoesOnWithTheSameBits) {
  constexpr int64_t kSteps = 20;
  struct Case {
    int64_t world;
    WireFormat format;
  };
  for (const auto& [world, format] :
       {Case{1, WireFormat::kInt4B32}, Case{2, WireFormat::kInt4B32}, Case{3, WireFormat::kVar5},
        Case{5, WireFormat::kInt4B32}, Case{4, WireFormat::kTop2P31}}) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      SmallTraining whole(rank);
      OuterOptimizer outer(*whole.inner, group, streaming_options(format));
      std::vector<SavedRank> states;
      for (int64_t step = 0; step < kSteps; ++step) {
        states.push_back(saved(whole, outer));
        take_step(whole, outer);
      }
      for (int64_t from = 0; from < kSteps; ++from) {
        const SavedRank& state = states[static_cast<size_t>(from)];
        SmallTraining resumed(rank);
        OuterOptimizer other(*resumed.inner, group, streaming_options(format));
        other.load_state(state.outer);
        resumed.set(state.parameters);
        for (int64_t step = from; step < kSteps; ++step) take_step(resumed, other);
        EXPECT_TRUE(at::equal(resumed.flat(), whole.flat())) << "from step " << from << ", " << world << " ranks";
        EXPECT_TRUE(at::equal(other.reference(), outer.reference())) << "from step " << from;
        EXPECT_EQ(other.payload_bytes_sent(), outer.payload_bytes_sent());
        EXPECT_EQ(other.exchanges(), outer.exchanges());
        EXPECT_EQ(other.replicas_are_equal(), outer.replicas_are_equal());
      }
    });
  }
}

TEST(OuterState, AskingForItChangesNothing) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    SmallTraining asked(rank);
    SmallTraining left_alone(rank);
    OuterOptimizer one(*asked.inner, group, streaming_options());
    OuterOptimizer other(*left_alone.inner, group, streaming_options());
    for (int64_t step = 0; step < 20; ++step) {
      take_step(asked, one);
      take_step(left_alone, other);
      one.state();
      const OuterOptimizer::OuterParameters look(one);
    }
    EXPECT_TRUE(at::equal(asked.flat(), left_alone.flat()));
  });
}

// Four ranks save an exchange under way and residuals; two and five ranks resume.
void resume_in_other_worlds(WireFormat format) {
  constexpr int64_t kSteps = 2 + 6 + 3 + 1;  // The warm-up, a round, and a step after the next fragment is issued.
  std::vector<SavedRank> left(4);
  at::Tensor reference;
  run_ranks(4, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, streaming_options(format));
    for (int64_t step = 0; step < kSteps; ++step) take_step(training, outer);
    left[static_cast<size_t>(rank)] = saved(training, outer);
    if (rank == 0) reference = outer.reference().clone();
  });
  ASSERT_TRUE(left[0].outer.replica.contains("mean")) << "no exchange is under way";
  for (const int64_t world : {2, 5}) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      OuterState saved{left[0].outer.replica, {.world_size = 4, .states = {}, .first = left[0].outer.rank.own()}};
      for (int64_t former = rank; former < 4; former += world) {
        saved.rank.states.push_back(left[static_cast<size_t>(former)].outer.rank.own());
      }
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, streaming_options(format));
      outer.load_state(saved);
      EXPECT_TRUE(at::equal(training.flat(), reference));
      EXPECT_TRUE(outer.replicas_are_equal());
      take_step(training, outer);  // Joins the exchange that was under way.
      EXPECT_FALSE(at::equal(outer.reference(), reference));
      for (int64_t step = 0; step < 6; ++step) take_step(training, outer);
      EXPECT_TRUE(same_on_all_ranks(group, {outer.reference()}));
      outer.finish();
      EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
    });
  }
}

TEST(OuterState, AnotherWorldTakesTheReference) {
  for (const WireFormat format : {WireFormat::kInt4B32, WireFormat::kTop2P31}) resume_in_other_worlds(format);
}

// Four ranks resume in the same world, as if this rank averaged its gradients with other ranks than before.
TEST(OuterState, OtherGroupsTakeTheReference) {
  run_ranks(4, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, streaming_options());
    for (int64_t step = 0; step < 9; ++step) take_step(training, outer);
    const SavedRank left = saved(training, outer);
    for (const bool groups_differ : {false, true}) {
      SmallTraining other(rank);
      OuterOptimizer resumed(*other.inner, group, streaming_options());
      other.set(left.parameters);
      resumed.load_state({.replica = left.outer.replica, .rank = left.outer.rank, .groups_differ = groups_differ});
      EXPECT_TRUE(at::equal(other.flat(), groups_differ ? outer.reference() : left.parameters));
      EXPECT_EQ(resumed.replicas_are_equal(), groups_differ);
    }
  });
}

// The sum that residuals of fragment 0 add to later means: the mean over ranks of their residuals, plus the residuals
// of the parts of the mean that they sent.
at::Tensor owed(const std::vector<hooks::HookState>& ranks, int64_t numel) {
  at::Tensor owed = at::zeros({numel});
  for (const hooks::HookState& state : ranks) {
    if (state.contains("residual.fragment.0")) {
      owed.add_(state.at("residual.fragment.0"), 1.0 / static_cast<double>(ranks.size()));
    }
    if (const auto mean = state.find("mean_residual.fragment.0"); mean != state.end()) {
      const int64_t begin = state.at("place.fragment.0")[2].item<int64_t>();
      owed.narrow(0, begin, mean->second.numel()).add_(mean->second);
    }
  }
  return owed;
}

// Fragment 1 is exchanged next and does not change residuals of fragment 0. All ranks resume with the reference and
// keep it, so that only residuals are sent.
void resume_residuals_in_other_worlds(WireFormat format) {
  const OuterOptions options = OuterOptions().sync_every(2).fragments(2).wire(outer_wire(format)).error_decay(1);
  std::vector<SavedRank> left(4);
  run_ranks(4, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, options);
    for (int64_t step = 0; step < 3; ++step) training.step(outer);
    left[static_cast<size_t>(rank)] = saved(training, outer);
  });
  std::vector<hooks::HookState> before;
  for (const SavedRank& rank : left) before.push_back(rank.outer.rank.states[0]);
  const int64_t numel = before[0].at("residual.fragment.0").numel();
  ASSERT_GT(owed(before, numel).abs().max().item<double>(), 1e-3);
  for (const int64_t world : {2, 5}) {
    std::vector<hooks::HookState> after(static_cast<size_t>(world));
    at::Tensor way;
    run_ranks(world, [&](int64_t rank, const auto& group) {
      OuterState former{left[0].outer.replica, {.world_size = 4, .states = {}, .first = before[0]}};
      for (int64_t i = rank; i < 4; i += world) {
        former.rank.states.push_back(before[static_cast<size_t>(i)]);
      }
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, options);
      outer.load_state(former);
      const at::Tensor reference = outer.reference().clone();
      outer.skip_step();
      // Saves and resumes once more before fragment 0 is exchanged.
      outer.load_state(saved(training, outer).outer);
      outer.skip_step();
      after[static_cast<size_t>(rank)] = saved(training, outer).outer.rank.states[0];
      if (rank == 0) way = (reference - outer.reference()).narrow(0, 0, numel);
    });
    EXPECT_LT((owed(before, numel) - owed(after, numel) - way).abs().max().item<double>(), 1e-6) << world << " ranks";
  }
}

TEST(OuterState, ResidualsOfAllFragmentsGoToAnotherWorld) {
  for (const WireFormat format : {WireFormat::kInt4B32, WireFormat::kTop2P31}) resume_residuals_in_other_worlds(format);
}

TEST(OuterState, WhatDoesNotFitIsNamed) {
  run_ranks(1, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, streaming_options());
    for (int64_t step = 0; step < 6; ++step) take_step(training, outer);
    const SavedRank good = saved(training, outer);
    const auto refused = [&](const char* name, const at::Tensor& value) {
      OuterState bad = good.outer;
      bad.replica.erase(name);
      if (value.defined()) bad.replica.emplace(name, value);
      SmallTraining other(rank);
      OuterOptimizer resumed(*other.inner, group, streaming_options());
      return error_message<CorruptInputError>([&] { resumed.load_state(bad); });
    };
    EXPECT_THAT(refused("steps", {}), HasSubstr("'steps'"));
    EXPECT_THAT(refused("reference", {}), HasSubstr("'reference' is missing"));
    EXPECT_THAT(refused("reference", at::zeros({50})), HasSubstr("must be float32 [51]"));
    EXPECT_THAT(refused("momentum", at::zeros({51}, at::kDouble)), HasSubstr("'momentum' is Double"));
    EXPECT_THAT(refused("mean", at::zeros({1})), HasSubstr("'mean' is Float [1]"));
    EXPECT_THAT(refused("joined_at", hooks::int_tensor(99)), HasSubstr("is to be joined after step 99"));
  });
}

}  // namespace
}  // namespace narrowcast::testing

#include <narrowcast/gradient_reducer.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;

TEST(NoSyncGuardTest, RestoresWhatWasBeforeIt) {
  bool synchronise = true;
  {
    const NoSyncGuard outer(synchronise);
    EXPECT_FALSE(synchronise);
    { const NoSyncGuard inner(synchronise); }
    EXPECT_FALSE(synchronise);
  }
  EXPECT_TRUE(synchronise);
}

// The module's part of a step, called directly; returns the output to use.
at::Tensor forward(GradientReducer& reducer, SmallNet& net, const at::Tensor& x) {
  reducer.before_forward();
  return reducer.after_forward({net->forward(x)}).at(0);
}

TEST(GradientReducerTest, WantsOutputsWhereTheyMustGoThroughTheSink) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    SmallNet net;
    GradientReducer plain(module_state(net.ptr()), group, DdpOptions());
    EXPECT_FALSE(plain.wants_outputs());
    GradientReducer unused(module_state(SmallNet().ptr()), group, DdpOptions().find_unused_parameters(true));
    EXPECT_TRUE(unused.wants_outputs());
    {
      const auto guard = unused.no_sync();
      EXPECT_FALSE(unused.wants_outputs());
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(unused.wants_outputs());
  });
}

TEST(GradientReducerTest, AStaticGraphWantsOutputsUntilItIsKnown) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    SmallNet net;
    GradientReducer reducer(module_state(net.ptr()), group, DdpOptions().static_graph(true));
    EXPECT_TRUE(reducer.wants_outputs());
    const Sample sample = sample_of(0, rank);
    const at::Tensor output = forward(reducer, net, sample.x);
    EXPECT_TRUE(reducer.wants_outputs());  // Known only after the first backward pass.
    reducer.backward(loss_of(output, sample));
    EXPECT_FALSE(reducer.wants_outputs());
    EXPECT_TRUE(same_on_all_ranks(group, gradients_in(net->parameters())));
  });
}

TEST(GradientReducerTest, ReturnsTheOutputsThemselvesWhereNothingMustBeWatched) {
  run_ranks(1, [](int64_t rank, const ProcessGroupPtr& group) {
    SmallNet net;
    GradientReducer reducer(module_state(net.ptr()), group, DdpOptions());
    reducer.before_forward();
    const at::Tensor output = net->forward(sample_of(0, rank).x);
    EXPECT_TRUE(reducer.after_forward({output}).at(0).is_same(output));
  });
}

TEST(GradientReducerTest, ABackwardPassFromBeforeItsEndChangesNothingThere) {
  const Sample sample = sample_of(0, 0);
  at::Tensor loss;
  SmallNet net;
  run_ranks(1, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
    GradientReducer reducer(module_state(net.ptr()), group, DdpOptions().static_graph(true));
    loss = loss_of(forward(reducer, net, sample.x), sample);
  });
  const auto expected = gradients_of(loss_of(net->forward(sample.x), sample), net->parameters());
  EXPECT_NO_THROW(loss.backward());  // The reducer is destroyed already.
  EXPECT_TRUE(bytes_of(gradients_in(net->parameters())) == bytes_of(expected));
}

// Small buckets, so that the first step's layout and the rebuilt one differ.
TEST(GradientReducerTest, TakesUpTheBucketsOfAnother) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    const DdpOptions options = DdpOptions().bucket_cap_mb(1e-4).first_bucket_mb(5e-5);
    const Sample sample = sample_of(0, rank);
    SmallNet net;
    GradientReducer first(module_state(net.ptr()), group, options);
    const BucketNames initial = first.state().buckets;
    EXPECT_FALSE(first.settle_buckets()) << "nothing is known before the first step";
    first.backward(loss_of(forward(first, net, sample.x), sample));
    EXPECT_TRUE(first.settle_buckets());
    const ReducerState state = first.state();
    EXPECT_NE(state.buckets, initial);
    EXPECT_EQ(state.reductions, 1);
    SmallNet other;
    GradientReducer second(module_state(other.ptr()), group, options);
    second.load_state({.buckets = state.buckets, .reductions = state.reductions, .hook = {}});
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_EQ(second.state().buckets, state.buckets) << "before step " << step;
      second.zero_grad();
      second.backward(loss_of(forward(second, other, sample.x), sample));
    }
    EXPECT_EQ(second.state().reductions, 4);
    EXPECT_EQ(second.payload_bytes_sent(), 4 * first.payload_bytes_sent());
  });
}

}  // namespace
}  // namespace narrowcast

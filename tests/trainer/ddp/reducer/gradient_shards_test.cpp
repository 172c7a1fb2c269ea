// The backward pass of a GradientReducer, and its parts for a sharded optimizer.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/gradient_reducer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A module with its reducer, whose parts of a step are called directly.
struct ReducedNet {
  ReducedNet(const ProcessGroupPtr& group, const DdpOptions& options)
      : rank(group->getRank()), reducer(module_state(net.ptr()), group, options) {}

  at::Tensor forward(int64_t step) {
    sample = sample_of(step, rank);
    reducer.before_forward();
    return loss_of(reducer.after_forward({net->forward(sample.x)}).at(0), sample);
  }
  std::string backward_error(int64_t step) {
    const at::Tensor loss = forward(step);
    return error_message<c10::ValueError>([&] { reducer.backward(loss); });
  }

  SmallNet net;
  const int64_t rank;
  Sample sample;
  GradientReducer reducer;
};

// Every rank is a node, so that the hook has two hops.
DdpOptions int8_between_nodes() { return DdpOptions().hook("int8").wire(hooks::WireOptions{.node_size = 1}); }

TEST(GradientShards, ZeroGradLeavesNoGradient) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    ReducedNet reduced(group, DdpOptions().gradient_as_bucket_view(true));
    reduced.reducer.backward(reduced.forward(0));
    EXPECT_TRUE(reduced.net->first->weight.grad().defined());
    reduced.reducer.zero_grad();
    for (const at::Tensor& parameter : reduced.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

TEST(GradientShards, AreThoseOfTheHook) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    ReducedNet plain(group, DdpOptions());
    EXPECT_THAT(plain.reducer.average_shards(hooks::ShardRounding::kAsWhole), IsEmpty());
    ReducedNet reduced(group, int8_between_nodes());
    EXPECT_FALSE(reduced.reducer.averages_shards());
    EXPECT_THAT(reduced.reducer.average_shards(hooks::ShardRounding::kAsWhole), ElementsAre(0, 1));
    EXPECT_TRUE(reduced.reducer.averages_shards());
    reduced.reducer.backward(reduced.forward(0));
    EXPECT_FALSE(same_on_all_ranks(group, gradients_in(reduced.net->parameters()))) << "each has its shard";
    reduced.reducer.zero_grad();
    reduced.reducer.average_shards(std::nullopt);
    EXPECT_FALSE(reduced.reducer.averages_shards());
    reduced.reducer.backward(reduced.forward(1));
    EXPECT_TRUE(same_on_all_ranks(group, gradients_in(reduced.net->parameters())));
  });
}

// A second pass would add to averages in a rank's own shard, and to its own gradients elsewhere.
TEST(GradientShards, ASecondPassIsRefusedUntilTheGradientsAreGone) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    ReducedNet reduced(group, int8_between_nodes());
    reduced.reducer.average_shards(hooks::ShardRounding::kOnce);
    const auto alone = [&](int64_t step) {
      const auto guard = reduced.reducer.no_sync();
      return reduced.backward_error(step);
    };
    EXPECT_EQ(alone(0), "nothing was thrown") << "gradients add up before they are averaged";
    EXPECT_EQ(reduced.backward_error(1), "nothing was thrown");
    EXPECT_THAT(reduced.backward_error(2), HasSubstr("the last averaged gradients are still there"));
    EXPECT_THAT(alone(3), HasSubstr("call step() and zero_grad() before the next backward pass"));
    reduced.reducer.zero_grad();
    EXPECT_EQ(reduced.backward_error(4), "nothing was thrown");
    EXPECT_TRUE(reduced.net->first->weight.grad().isfinite().all().item<bool>());
  });
}

// Nobody else waits for a rank inside no_sync.
TEST(GradientShards, AWrongWeightInsideNoSyncIsAnErrorOfItsRankAlone) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    ReducedNet reduced(group, DdpOptions());
    {
      const auto guard = reduced.reducer.no_sync();
      const at::Tensor loss = reduced.forward(0);
      const double weight = rank == 1 ? std::numeric_limits<double>::quiet_NaN() : 0.5;
      const std::string error = error_message<c10::ValueError>([&] { reduced.reducer.backward(loss, weight); });
      EXPECT_THAT(error, rank == 1 ? HasSubstr("weight: must be this rank's share of the samples of all ranks, in "
                                               "0..1, but is nan on rank 1")
                                   : HasSubstr("nothing was thrown"));
    }
    reduced.reducer.zero_grad();
    reduced.reducer.backward(reduced.forward(1), 0.5);
    EXPECT_TRUE(same_on_all_ranks(group, gradients_in(reduced.net->parameters())));
  });
}

bool are_same(const std::vector<std::vector<at::Tensor>>& a, const std::vector<std::vector<at::Tensor>>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) {
    same = a[i].size() == b[i].size();
    for (size_t j = 0; same && j < a[i].size(); ++j) same = a[i][j].is_same(b[i][j]);
  }
  return same;
}

// The gradients that an optimizer reads lie in the buckets of the last averaged pass.
TEST(GradientShards, BucketsAreThoseOfTheLastAveragedPass) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    ReducedNet reduced(group, int8_between_nodes().bucket_cap_mb(kTinyMb));
    const auto initial = reduced.reducer.buckets();
    size_t parameters = 0;
    for (const auto& bucket : initial) parameters += bucket.size();
    EXPECT_EQ(parameters, reduced.net->parameters().size());
    reduced.reducer.backward(reduced.forward(0));
    EXPECT_TRUE(are_same(reduced.reducer.buckets(), initial));
    reduced.reducer.zero_grad();
    const at::Tensor loss = reduced.forward(1);  // Rebuilds the buckets.
    EXPECT_TRUE(are_same(reduced.reducer.buckets(), initial));
    reduced.reducer.backward(loss);
    EXPECT_FALSE(are_same(reduced.reducer.buckets(), initial));
  });
}

}  // namespace
}  // namespace narrowcast

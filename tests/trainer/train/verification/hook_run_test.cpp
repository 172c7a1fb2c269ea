#include "trainer/train/verification/hook_run.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/hooks/all/parameters_bucket.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/verification/gradient_problems.h"

namespace narrowcast::verification {
namespace {

using testing::mlp_parts;
using testing::ProblemParts;
using testing::real_hooks;
using testing::run_ranks;

std::vector<HookRun> runs_of(const std::string& hook, const ProblemParts& parts) {
  std::vector<HookRun> runs(parts.models.size());
  run_ranks(static_cast<int64_t>(parts.models.size()), [&](int64_t rank, const ProcessGroupPtr& group) {
    verification::GradientProblem problem = parts.of_rank(rank, group);
    problem.ddp = problem.ddp.with_hook(hook);
    runs[rank] = run_hook(problem, real_hooks(group));
  });
  return runs;
}

TEST(LocalGradients, AreTheRanksOwnAndLeaveNoneBehind) {
  const ProblemParts parts = mlp_parts(2);
  const auto first = local_gradients(parts.of_rank(0, nullptr));
  const auto second = local_gradients(parts.of_rank(1, nullptr));
  ASSERT_EQ(first.size(), 6U);
  EXPECT_FALSE(at::equal(first[0], second[0]));
  EXPECT_FALSE(parts.models[0]->parameters()[0].grad().defined());
}

TEST(RunHook, NoopLeavesEachRankItsOwnGradients) {
  const ProblemParts parts = mlp_parts(2);
  const std::vector<HookRun> runs = runs_of("noop", parts);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto local = local_gradients(parts.of_rank(static_cast<int64_t>(rank), nullptr));
    for (const PassResult& pass : runs[rank].passes) {
      for (size_t i = 0; i < local.size(); ++i) {
        EXPECT_TRUE(at::equal(pass.gradients[i], local[i]));
      }
    }
  }
}

TEST(RunHook, BoundsAreTheSameOnAllRanksAndInTheParametersShapes) {
  const ProblemParts parts = mlp_parts(3);
  for (const char* hook : {"none", "quantize_per_tensor", "quantize_per_channel"}) {
    const std::vector<HookRun> runs = runs_of(hook, parts);
    for (const HookRun& run : runs) {
      ASSERT_EQ(run.passes.size(), 2U);
      for (size_t i = 0; i < run.passes[1].bounds.size(); ++i) {
        EXPECT_EQ(run.passes[1].bounds[i].sizes(), parts.models[0]->parameters()[i].sizes()) << hook;
        EXPECT_TRUE(at::equal(run.passes[1].bounds[i], runs[0].passes[1].bounds[i])) << hook;
        EXPECT_GT(run.passes[1].bounds[i].min().item<double>(), 0) << hook;
      }
    }
  }
}

TEST(RunHook, BoundsFollowTheLayoutOfTheBuckets) {
  const HookRun run = runs_of("quantize_per_tensor", mlp_parts(2))[0];
  // First all parameters are in one bucket and share a scale; later the biases of the last layer are in another bucket.
  const auto largest = [](const PassResult& pass, size_t i) { return pass.bounds[i].max().item<double>(); };
  // The other terms of a bound are a few rounding errors of 2^-24.
  const double shared = largest(run.passes[0], 0);
  EXPECT_NEAR(largest(run.passes[0], 2), shared, shared * 1e-4);
  EXPECT_GT(std::abs(largest(run.passes[1], 0) - largest(run.passes[1], 2)), shared * 1e-2);
}

TEST(RunHook, CountsOnePass) {
  // 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10 gradients, in four bytes and in two bytes.
  EXPECT_EQ(runs_of("none", mlp_parts(2))[0].payload_bytes_sent, 26122 * 4);
  EXPECT_EQ(runs_of("fp16_compress", mlp_parts(2))[1].payload_bytes_sent, 26122 * 2);
  EXPECT_EQ(runs_of("noop", mlp_parts(2))[0].payload_bytes_sent, 0);
}

// A parameter's gradient was rounded to zero in a bucket with a large one, and then the parameter is in a separate
// bucket. The residual that is added in the second pass depends on the first bucket's scale.
TEST(PassBounds, FollowResidualsIntoAnotherLayout) {
  using hooks::make_parameters_bucket;
  const auto ddp = DdpOptions().hook("int4").wire({.error_feedback = true, .node_size = 1});
  const std::vector<at::Tensor> parameters = {at::zeros({16, 1}), at::zeros({16, 1})};
  // The step is 1000 / 7: 70 is less than half of it.
  const std::vector<at::Tensor> gradients = {at::full({16, 1}, 70.F), at::full({16, 1}, 1000.F)};
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    RecordingHook hook(real_hooks(group)(ddp));
    const auto mean_of = [&](c10d::GradBucket bucket) {
      const auto future = hook.runHook(bucket);
      future->waitAndThrow();
      return hook.parseHookResult(future->value());
    };
    PassBounds bounds(group, ddp);
    const at::Tensor first = mean_of(make_parameters_bucket(parameters, gradients)).narrow(0, 0, 16);
    EXPECT_EQ(first[0].item<float>(), 0);
    const at::Tensor first_bound = bounds.of_pass(hook.take_buckets(), parameters)[0];
    const at::Tensor second = mean_of(make_parameters_bucket({parameters[0]}, {gradients[0]}, 0, 2));
    mean_of(make_parameters_bucket({parameters[1]}, {gradients[1]}, 1, 2));
    const at::Tensor bound = bounds.of_pass(hook.take_buckets(), parameters)[0];
    // At least the lost gradient; afterwards half a step of 140 / 7, not of the sums.
    EXPECT_GE(first_bound[0].item<double>(), 70);
    EXPECT_LE(std::abs((first[0] + second[0] - 2 * 70).item<double>()), bound[0].item<double>());
    EXPECT_LT(bound[0].item<double>(), 15);
    EXPECT_GT(second[0].item<float>(), 130) << "the residual is added";
  });
}

}  // namespace
}  // namespace narrowcast::verification

#include "hooks/quantized/encoded_all_reduce_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>

#include <narrowcast/errors.h>
#include <narrowcast/hooks.h>
#include <narrowcast/quantized_all_reduce.h>
#include "ops/collectives/all_reduce/operator/announced_call.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using collectives::mean_in_rank_order;
using collectives::one_shot_mean;
using collectives::two_shot_mean;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kRanks = 3;
constexpr int64_t kNumel = 300'000;  // Two shots, in every format.

std::vector<at::Tensor> make_gradients(int64_t numel, int64_t ranks = kRanks) {
  at::manual_seed(numel);
  std::vector<at::Tensor> gradients;
  for (int64_t rank = 0; rank < ranks; ++rank) gradients.push_back(at::randn({numel}));
  return gradients;
}

at::Tensor run(CommHook& hook, c10d::GradBucket bucket) {
  const auto future = hook.runHook(bucket);
  future->waitAndThrow();
  return hook.parseHookResult(future->value());
}

// Every rank is a node, though all are on one machine, unless `wire` has a node size. With this link two shots are
// faster from a size on that is below kNumel.
HookOptions with(const Group& group, WireOptions wire) {
  wire.node_size = wire.node_size.value_or(1);
  wire.link_gbit = 10;
  wire.link_us = 50;
  return {group, wire};
}

TEST(QuantizedAllReduceHook, TakesAnyFormat) {
  const auto gradients = make_gradients(kNumel);
  for (const WireFormat format : kWireFormats) {
    const bool is_sparse = codec::wire::is_sparse(format);  // Then never two shots.
    const at::Tensor expected = is_sparse ? one_shot_mean({format}, gradients) : two_shot_mean({format}, gradients);
    run_ranks(kRanks, [&](int64_t rank, const Group& group) {
      const auto hook =
          create_comm_hook("quantized_allreduce", with(group, {.format = format, .error_feedback = is_sparse}));
      EXPECT_TRUE(at::equal(run(*hook, make_bucket(gradients[rank].clone())), expected)) << to_string(format);
    });
  }
}

// The operator takes the link that with() gives the hook. Number of ranks, ranks per node.
class OperatorAndHook : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, OperatorAndHook,
                         ::testing::Values(std::tuple(2, 1), std::tuple(2, 2), std::tuple(3, 1), std::tuple(3, 2),
                                           std::tuple(4, 2), std::tuple(4, 4), std::tuple(5, 1), std::tuple(5, 3),
                                           std::tuple(8, 2), std::tuple(8, 3)));

TEST_P(OperatorAndHook, HaveTheSameBits) {
  const auto [ranks, node_size] = GetParam();
  for (const int64_t numel : {1, 5000, 150'001}) {
    const auto gradients = make_gradients(numel, ranks);
    run_ranks(ranks, [&, node_size = node_size](int64_t rank, const Group& group) {
      collectives::GroupWorkspace::of(group)->set_nodes(node::find_nodes(group, node_size));
      for (const WireFormat format : kWireFormats) {
        const auto hook = create_comm_hook(
            "quantized_allreduce",
            with(group, {.format = format, .error_feedback = codec::wire::is_sparse(format), .node_size = node_size}));
        const at::Tensor of_hook = run(*hook, make_bucket(gradients[rank].clone()));
        EXPECT_TRUE(test::same_bits(quantized_all_reduce(gradients[rank], format, group), of_hook)) << format;
        if (node_size == 1) {
          EXPECT_TRUE(test::same_bits(quantized_all_reduce(gradients[rank], format, group, Levels::kOne), of_hook));
        }
      }
    });
  }
}

// Steps and buckets use different random numbers; a second training with the same seed repeats them.
TEST(QuantizedAllReduceHook, RoundsAtRandomBySeedStepAndPosition) {
  const auto gradients = make_gradients(kNumel);
  constexpr uint64_t kPerBucket = uint64_t{1} << 40;
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook("int4", with(group, {.stochastic_rounding_seed = 11}));
    for (const uint64_t step : {1, 2}) {
      for (const uint64_t index : {0, 1}) {
        const collectives::Reference reference{WireFormat::kInt4B32, {true, 11, step, index * kPerBucket}};
        EXPECT_TRUE(
            at::equal(run(*hook, make_bucket(gradients[rank].clone(), index, 2)), two_shot_mean(reference, gradients)))
            << "step " << step << ", bucket " << index;
      }
    }
  });
}

// An array that can be cut uses two hops if bandwidth is low, and one hop if latency is high.
TEST(QuantizedAllReduceHook, TakesTheRouteOfTheLink) {
  const auto gradients = make_gradients(kNumel);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto mean = [&](double gbit, double microseconds) {
      const auto hook = create_comm_hook("int4", {group, {.node_size = 1, .link_gbit = gbit, .link_us = microseconds}});
      return run(*hook, make_bucket(gradients[rank].clone()));
    };
    EXPECT_TRUE(at::equal(mean(1e-3, 1), two_shot_mean({WireFormat::kInt4B32}, gradients)));
    EXPECT_TRUE(at::equal(mean(1e3, 1e6), one_shot_mean({WireFormat::kInt4B32}, gradients)));
  });
}

// The measured link determines the bits, so a resumed training keeps it.
TEST(QuantizedAllReduceHook, GoesOnWithTheLinkThatWasMeasured) {
  run_ranks(kRanks, [&](int64_t, const Group& group) {
    const auto hook = create_comm_hook("int4", {group, {.node_size = 1}});
    HookState state = hook->state({});
    ASSERT_TRUE(state.contains("link"));
    state["link"] = at::tensor({1.0, 2.0}, at::kDouble);
    const FormerRanks saved{.world_size = kRanks, .states = {state}, .first = state};
    hook->load_state(saved, {});
    EXPECT_TRUE(at::equal(hook->state({}).at("link"), state["link"]));
    hook->load_state({.world_size = kRanks + 1, .states = {hook->state({})}, .first = {}}, {});
    const auto given = create_comm_hook("int4", with(group, {}));
    given->load_state(saved, {});
    EXPECT_FALSE(at::equal(given->state({}).at("link"), state["link"])) << "what is given is taken";
    state["link"] = at::tensor({1.0, -2.0}, at::kDouble);
    EXPECT_THROW(hook->load_state({.world_size = kRanks, .states = {state}, .first = {}}, {}), CorruptInputError);
  });
}

TEST(QuantizedAllReduceHook, ExemptsParametersOfOneDimension) {
  const at::Tensor weight = at::zeros({600, 500});
  const at::Tensor bias = at::zeros({600});
  const at::Tensor scalar = at::zeros({});
  const auto weights = make_gradients(weight.numel());
  const auto biases = make_gradients(bias.numel() + 1);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook("int4", with(group, {.exempt_one_dimensional = true}));
    const at::Tensor mean = run(
        *hook, make_parameters_bucket({bias, weight, scalar}, {biases[rank].narrow(0, 0, bias.numel()), weights[rank],
                                                               biases[rank].narrow(0, bias.numel(), 1)}));
    const at::Tensor exact = mean_in_rank_order(biases);
    EXPECT_TRUE(at::equal(mean.narrow(0, 0, bias.numel()), exact.narrow(0, 0, bias.numel())));
    EXPECT_TRUE(at::equal(mean.narrow(0, mean.numel() - 1, 1), exact.narrow(0, bias.numel(), 1)));
    const at::Tensor narrow = mean.narrow(0, bias.numel(), weight.numel());
    const at::Tensor error = (narrow - mean_in_rank_order(weights)).abs();
    EXPECT_GT(error.max().item<float>(), 0) << "the others travel narrow";
    EXPECT_LT(error.max().item<float>(), 2 * 6.0 / 7) << "two hops of half a step each, of blocks below 6";
    const int64_t sent = encoded_size(mean.numel(), WireFormat::kInt4B32) + 4 * (bias.numel() + 1);
    EXPECT_EQ(hook->compression(), 4 * static_cast<double>(mean.numel()) / static_cast<double>(sent));
  });
}

// The number of ranks, and of ranks per node; the last node may have fewer.
class QuantizedAllReduceOverNodes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  const int64_t ranks_ = std::get<0>(GetParam());
  const int64_t node_size_ = std::get<1>(GetParam());
};

// The buckets are rebuilt in between, as the Reducer does after its first step; the error of the sum stays bounded.
TEST_P(QuantizedAllReduceOverNodes, FeedsBackItsErrorsThroughARebuild) {
  constexpr int64_t kSteps = 60;
  const at::Tensor a = at::zeros({300, 500});
  const at::Tensor b = at::zeros({100, 500});
  const auto of_a = make_gradients(a.numel(), ranks_);
  const auto of_b = make_gradients(b.numel(), ranks_);
  run_ranks(ranks_, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook("int4", with(group, {.error_feedback = true, .node_size = node_size_}));
    at::Tensor sum_a = at::zeros({a.numel()}, at::kDouble);
    at::Tensor sum_b = at::zeros({b.numel()}, at::kDouble);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step < kSteps / 2) {
        const at::Tensor both = run(*hook, make_parameters_bucket({a, b}, {of_a[rank], of_b[rank]}));
        sum_a += both.narrow(0, 0, a.numel());
        sum_b += both.narrow(0, a.numel(), b.numel());
      } else {
        sum_b += run(*hook, make_parameters_bucket({b}, {of_b[rank]}, 0, 2));
        sum_a += run(*hook, make_parameters_bucket({a}, {of_a[rank]}, 1, 2));
      }
    }
    // The error of the sum equals the residuals. They are half a step of a code per hop; a step is a seventh of the
    // largest number, which is below 6 here, plus the residuals. Without feedback it would be up to kSteps times that.
    const double bound = 2 * 1.5 * (6.0 / 7 / 2);
    EXPECT_LT((sum_a - kSteps * mean_in_rank_order(of_a).to(at::kDouble)).abs().max().item<double>(), bound);
    EXPECT_LT((sum_b - kSteps * mean_in_rank_order(of_b).to(at::kDouble)).abs().max().item<double>(), bound);
  });
}

// Tests that error feedback and random rounding of earlier steps are kept.
TEST_P(QuantizedAllReduceOverNodes, GoesOnFromItsStateWithTheSameBits) {
  const WireOptions wire = {.stochastic_rounding_seed = 3, .error_feedback = true, .node_size = node_size_};
  const at::Tensor parameter = at::zeros({kNumel});
  const std::vector<NamedParameter> parameters = {{"p", parameter}};
  const auto gradients = make_gradients(kNumel, ranks_);
  run_ranks(ranks_, [&](int64_t rank, const Group& group) {
    const auto step = [&](CommHook& hook) { return run(hook, make_parameters_bucket({parameter}, {gradients[rank]})); };
    for (const std::string name : {"int4", "var4"}) {
      SCOPED_TRACE(name);
      const auto whole = create_comm_hook(name, with(group, wire));
      const at::Tensor first = step(*whole);
      HookState state;
      for (const auto& [key, tensor] : whole->state(parameters)) state.emplace(key, tensor.clone());
      const auto resumed = create_comm_hook(name, with(group, wire));
      resumed->load_state({.world_size = ranks_, .states = {state}, .first = {}}, parameters);
      const at::Tensor expected = step(*whole);
      EXPECT_FALSE(at::equal(expected, first));
      EXPECT_TRUE(at::equal(step(*resumed), expected));
      EXPECT_EQ(resumed->payload_bytes_sent(), whole->payload_bytes_sent());
    }
  });
}

TEST_P(QuantizedAllReduceOverNodes, ForgetsAStepThatWasNotFinite) {
  auto gradients = make_gradients(kNumel, ranks_);
  run_ranks(ranks_, [&](int64_t rank, const Group& group) {
    for (const std::string name : {"int4", "var4"}) {
      SCOPED_TRACE(name);
      const auto hook = create_comm_hook(name, with(group, {.error_feedback = true, .node_size = node_size_}));
      const at::Tensor bad = gradients[rank].clone();
      if (rank == 1) bad.fill_(std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(run(*hook, make_bucket(bad)).isnan().all().item<bool>());
      EXPECT_TRUE(run(*hook, make_bucket(gradients[rank].clone())).isfinite().all().item<bool>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Hooks, QuantizedAllReduceOverNodes,
                         ::testing::Values(std::tuple(3, 1), std::tuple(4, 2), std::tuple(5, 2), std::tuple(6, 2)));

TEST(QuantizedAllReduceHook, IsExactWithinANode) {
  const auto gradients = make_gradients(kNumel);
  const at::Tensor exact = mean_in_rank_order(gradients);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    for (const WireOptions& wire : {WireOptions{}, WireOptions{.levels = Levels::kTwo}, WireOptions{.node_size = 3}}) {
      const auto hook = create_comm_hook("int4", {group, wire});
      EXPECT_TRUE(at::equal(run(*hook, make_bucket(gradients[rank].clone())), exact));
      EXPECT_EQ(hook->payload_bytes_sent(), 0);
    }
    const auto flat = create_comm_hook("int4", {group, {.levels = Levels::kOne, .link_gbit = 10, .link_us = 50}});
    EXPECT_TRUE(
        at::equal(run(*flat, make_bucket(gradients[rank].clone())), two_shot_mean({WireFormat::kInt4B32}, gradients)));
  });
}

// The rounding error of one layout of nodes reaches later means of another layout.
TEST(QuantizedAllReduceHook, CarriesItsErrorsOverIntoOtherNodes) {
  const at::Tensor parameter = at::zeros({kNumel});
  const std::vector<NamedParameter> parameters = {{"p", parameter}};
  const auto gradients = make_gradients(kNumel, 4);
  const at::Tensor exact = mean_in_rank_order(gradients).to(at::kDouble);
  for (const int64_t before : {1, 2}) {
    run_ranks(4, [&](int64_t rank, const Group& group) {
      const auto step = [&](CommHook& hook) {
        return run(hook, make_parameters_bucket({parameter}, {gradients[rank]})).to(at::kDouble);
      };
      const auto first = create_comm_hook("int4", with(group, {.error_feedback = true, .node_size = before}));
      const at::Tensor lacking = exact - step(*first);
      HookState state;
      for (const auto& [name, tensor] : first->state(parameters)) state.emplace(name, tensor.clone());
      const auto second = create_comm_hook("fp32", with(group, {.error_feedback = true, .node_size = 3 - before}));
      second->load_state({.world_size = 4, .states = {state}, .first = {}}, parameters);
      // Float32 sums of some numbers below 6.
      EXPECT_LT((step(*second) - exact - lacking).abs().max().item<double>(), 1e-5);
      EXPECT_LT((step(*second) - exact).abs().max().item<double>(), 1e-5) << "given once";
      EXPECT_GT(lacking.abs().max().item<double>(), 0.1);
    });
  }
}

TEST(QuantizedAllReduceHook, RefusesBucketsItCannotTake) {
  run_ranks(1, [](int64_t, const Group& group) {
    const auto hook = create_comm_hook("int8", {group});
    EXPECT_THAT(
        testing::error_message<c10::TypeError>([&] { run(*hook, make_bucket(at::zeros({3}, at::kInt), 4, 5)); }),
        ::testing::AllOf(::testing::HasSubstr("int8: bucket 4"), ::testing::HasSubstr("Int")));
  });
}

}  // namespace
}  // namespace narrowcast::hooks

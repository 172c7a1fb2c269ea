// PowerSGD's means. tests/python/programs/power_sgd_test.py compares them with PyTorch's.
#include "hooks/power_sgd/power_sgd.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "tests/hooks/all/bucket.h"
#include "tests/hooks/power_sgd/power_sgd_run.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr double kRounding = 0x1p-24;

class PowerSgdWorlds : public ::testing::TestWithParam<int64_t> {};

TEST_P(PowerSgdWorlds, KeepWhatTheMeanLacks) {
  expect_all_kept(in_all_formats({.options = {.rank = 2, .start = 0},
                                  .shapes = {{60, 40}, {33}, {30, 50}},
                                  .world_size = GetParam(),
                                  .steps = 3}),
                  60 * 40 + 33 + 30 * 50);
}

// Uncompressed elements take two hops, which end before the hop of Q begins.
TEST(PowerSgd, KeepsWhatTheMeanLacksOverTwoHops) {
  for (const int64_t world_size : {3, 4}) {
    const PowerSgdRun usual = {.options = {.rank = 2, .start = 0},
                               .shapes = {{60, 40}, {200'000}, {30, 50}},
                               .world_size = world_size,
                               .steps = 3};
    std::vector<PowerSgdRun> runs = in_all_formats(usual);
    runs.push_back(usual);
    runs.back().options.wire = WireFormat::kVar5;  // Reorders the elements that are sent.
    expect_all_kept(runs, 60 * 40 + 200'000 + 30 * 50);
  }
}

TEST_P(PowerSgdWorlds, ProjectsOnToAFewColumns) {
  for (const int64_t rank : {1, 2, 4}) {
    const PowerSgdRun run{
        .options = {.rank = rank, .start = 0, .error_feedback = false}, .shapes = {{60, 40}}, .world_size = GetParam()};
    const auto gradients = random_gradients(2400, at::kFloat);
    const PowerSgdResult result = run_power_sgd(run, gradients);
    const at::Tensor mean = float64_mean(gradients, run.world_size, 0);
    const at::Tensor singular = at::linalg_svdvals(result.means[0][0].to(at::kDouble).view({60, 40}));
    EXPECT_LT(singular[rank].item<double>(), 1e-5 * singular[0].item<double>());
    EXPECT_GT(singular[rank - 1].item<double>(), 1e-2 * singular[0].item<double>());
    EXPECT_LE(l2_norm(mean - result.means[0][0]), l2_norm(mean) * (1 + 1e-5));
  }
}

TEST_P(PowerSgdWorlds, GiveBackWhatHasNoMoreColumns) {
  at::manual_seed(3);
  const at::Tensor u = at::randn({60, 1});
  const at::Tensor v = at::randn({1, 40});
  const StepGradients of_rank_one = [&](int64_t rank, int64_t) {
    return (u * v * static_cast<double>(rank + 1)).flatten();
  };
  for (const int64_t rank : {1, 2}) {
    const PowerSgdRun run{
        .options = {.rank = rank, .start = 0}, .shapes = {{60, 40}}, .world_size = GetParam(), .steps = 2};
    const PowerSgdResult result = run_power_sgd(run, of_rank_one);
    const at::Tensor mean = float64_mean(of_rank_one, run.world_size, 0);
    // The cosine between v and a random Q is about 1 / sqrt(40); the rounding errors of M Q grow by its inverse.
    const double roundings = std::sqrt(40) * static_cast<double>(8 + run.world_size);
    EXPECT_LE(l2_norm(result.means[0][0] - mean), roundings * kRounding * l2_norm(mean)) << rank;
  }
  const auto gradients = random_gradients(9 * 7, at::kFloat);
  for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
    for (const int64_t rank : {7, 100}) {
      const PowerSgdRun run{.options = {.rank = rank, .start = 0, .min_rate = 1e-9, .memory = memory},
                            .shapes = {{9, 7}},
                            .world_size = GetParam()};
      const PowerSgdResult result = run_power_sgd(run, gradients);
      const at::Tensor mean = float64_mean(gradients, run.world_size, 0);
      EXPECT_LE(l2_norm(result.means[0][0] - mean), 4.0 * 7 * (1 + run.world_size) * kRounding * l2_norm(mean)) << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgdWorlds, ::testing::Values(1, 2, 3, 4, 5, 8));

// The arithmetic of float64 buckets is float64, so the difference is only the reference's rounding error.
TEST(PowerSgd, IsWhatTheFormulasSay) {
  for (const auto& [hook, batched] : {std::pair("power_sgd", false), std::pair("batched_power_sgd", true)}) {
    for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
      for (const int64_t rank : {1, 2, 4}) {
        for (const auto& [warm_start, alternate] :
             {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
          const PowerSgdRun run{
              .hook = hook,
              .options = {.rank = rank, .start = 0, .warm_start = warm_start, .alternate = alternate, .memory = memory},
              .shapes = {{batched ? 35 : 30, batched ? 35 : 40}},
              .world_size = 3,
              .steps = 6};
          const int64_t rows = run.shapes[0][0];
          const int64_t columns = run.shapes[0][1];
          const auto gradients = random_gradients(rows * columns, at::kDouble);
          const PowerSgdResult result = run_power_sgd(run, gradients);
          ReferencePowerSgd reference(run.options, rows, columns, run.world_size);
          for (int64_t step = 0; step < run.steps; ++step) {
            std::vector<at::Tensor> matrices;
            for (int64_t i = 0; i < run.world_size; ++i) matrices.push_back(gradients(i, step).view({rows, columns}));
            const at::Tensor expected = reference.step(matrices).flatten();
            EXPECT_LE(l2_norm(result.means[0][step] - expected), 1e-10 * l2_norm(expected))
                << hook << " rank " << rank << " step " << step << " alternate " << alternate;
          }
        }
      }
    }
  }
}

// Error feedback sends the error of one step in later steps.
TEST(PowerSgd, GivesAllInTheEnd) {
  const at::Tensor diagonal = at::diag(at::tensor({3.0F, 4.0F})).flatten();
  const PowerSgdRun run{.options = {.rank = 1, .start = 0, .min_rate = 0.5}, .shapes = {{2, 2}}, .steps = 50};
  const PowerSgdResult result = run_power_sgd(run, [&](int64_t, int64_t) { return diagonal; });
  at::Tensor sum = at::zeros({4});
  for (const at::Tensor& mean : result.means[0]) sum += mean;
  EXPECT_LE(l2_norm(sum - diagonal * 50), 0.05 * l2_norm(diagonal * 50));
}

TEST(PowerSgd, LearnsFromAMatrixThatWasZero) {
  const auto random = random_gradients(2400, at::kFloat);
  for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
    const PowerSgdRun run{.options = {.rank = 2, .start = 0, .memory = memory}, .shapes = {{60, 40}}, .steps = 4};
    const PowerSgdResult result = run_power_sgd(
        run, [&](int64_t rank, int64_t step) { return step < 2 ? at::zeros({2400}) : random(rank, step); });
    expect_equal_replicas(result);
    EXPECT_EQ(l2_norm(result.means[0][0]), 0);
    EXPECT_EQ(l2_norm(result.means[0][1]), 0);
    EXPECT_GT(l2_norm(result.means[0][2]), 0.1);
  }
}

TEST(PowerSgd, TakesMatricesOfOneRowOfZeros) {
  const auto random = random_gradients(2400, at::kFloat);
  const PowerSgdRun run{.options = {.rank = 2, .start = 0}, .shapes = {{60, 40}}, .steps = 2};
  const PowerSgdResult result = run_power_sgd(run, [&](int64_t rank, int64_t step) {
    at::Tensor gradient = random(rank, step);
    gradient.narrow(0, 40, 40).zero_();
    gradient.view({60, 40}).select(1, 3).fill_(1e-40F);  // A column of denormals.
    return gradient;
  });
  EXPECT_TRUE(result.means[0][1].isfinite().all().item<bool>());
  EXPECT_LE(l2_norm(result.means[0][1].narrow(0, 40, 40)), 1e-38);
}

TEST(PowerSgd, TakesAnyShape) {
  const std::vector<std::vector<int64_t>> shapes{{1, 1}, {}, {0, 4}, {1, 300}, {300, 1}, {4, 4}, {40, 2, 5}};
  for (const char* const hook : {"power_sgd_rank2", "batched_power_sgd_rank2"}) {
    for (const double min_rate : {2.0, 0.4}) {
      PowerSgdRun run{.hook = hook, .options = {.start = 0}, .shapes = shapes, .world_size = 3, .steps = 2};
      if (run.hook == "power_sgd_rank2") run.options.min_rate = min_rate;
      const auto gradients = random_gradients(1 + 1 + 300 + 300 + 16 + 400, at::kFloat);
      const PowerSgdResult result = run_power_sgd(run, gradients);
      expect_equal_replicas(result);
      EXPECT_TRUE(result.means[0][1].isfinite().all().item<bool>());
      if (run.hook == "power_sgd_rank2") {
        const at::Tensor mean = float64_mean(gradients, 3, 0);
        EXPECT_LE(l2_norm((result.means[0][0] - mean).narrow(0, 0, 602)), 64 * kRounding * l2_norm(mean))
            << "vectors are exact";
      }
    }
  }
}

TEST(PowerSgd, AveragesBucketsThatNameNoParameters) {
  const auto gradients = random_gradients(1000, at::kFloat);
  testing::run_ranks(3, [&](int64_t rank, const Group& group) {
    for (const char* const name : {"power_sgd", "batched_power_sgd"}) {
      const auto hook = create_comm_hook(name, {.process_group = group, .power_sgd = {.start = 0}});
      for (int64_t step = 0; step < 2; ++step) {
        auto bucket = make_bucket(gradients(rank, step));
        const auto future = hook->runHook(bucket);
        future->waitAndThrow();
        const at::Tensor mean = float64_mean(gradients, 3, step);
        const double off = l2_norm(hook->parseHookResult(future->value()) - mean);
        EXPECT_EQ(off <= 8 * kRounding * l2_norm(mean), std::string(name) == "power_sgd")
            << "no shapes, nothing to compress";
      }
    }
  });
}

TEST(PowerSgd, ComputesNarrowTypesInFloat32) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const PowerSgdRun run{.options = {.rank = 2, .start = 0}, .shapes = {{60, 40}, {5}}, .steps = 3};
    const auto gradients = random_gradients(2405, at::kFloat);
    const auto narrow = [&](int64_t rank, int64_t step) { return gradients(rank, step).to(dtype); };
    const PowerSgdResult result = run_power_sgd(run, narrow);
    const PowerSgdResult in_float32 =
        run_power_sgd(run, [&](int64_t rank, int64_t step) { return narrow(rank, step).to(at::kFloat); });
    for (int64_t step = 0; step < run.steps; ++step) {
      EXPECT_EQ(result.means[0][step].scalar_type(), dtype);
      EXPECT_TRUE(at::equal(result.means[1][step], in_float32.means[0][step].to(dtype)));
    }
  }
}

// A step that is not finite on one rank changes no state.
TEST(PowerSgd, ForgetsAStepThatIsNotFinite) {
  const auto random = random_gradients(2405, at::kFloat);
  for (const auto& [warm_start, alternate] : {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
    PowerSgdRun run{.options = {.rank = 2, .start = 0, .warm_start = warm_start, .alternate = alternate},
                    .shapes = {{60, 40}, {5}},
                    .steps = 4};
    const PowerSgdResult without = run_power_sgd(run, random);
    ++run.steps;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const auto& [bad_step, element] : {std::pair(0, 7), std::pair(2, 2402)}) {  // In a matrix and in a vector.
        const auto former = [at_step = bad_step](int64_t step) { return step > at_step ? step - 1 : step; };
        const PowerSgdResult with =
            run_power_sgd(run, [&, at_step = bad_step, place = element](int64_t rank, int64_t step) {
              at::Tensor gradient = random(rank, former(step));
              if (step == at_step && rank == 1) gradient[place].fill_(bad);
              return gradient;
            });
        for (int64_t step = 0; step < run.steps; ++step) {
          for (int64_t rank = 0; rank < 2; ++rank) {
            const at::Tensor& mean = with.means[rank][step];
            if (step == bad_step) {
              EXPECT_TRUE(mean.isnan().all().item<bool>()) << "so that all ranks skip it";
            } else {
              EXPECT_TRUE(at::equal(mean, without.means[rank][former(step)])) << step;
            }
          }
        }
      }
    }
  }
}

// If one of two buckets is not finite, its state is kept. The other bucket has used its residual for a mean and has a
// new residual, as if both were finite: the step that is skipped drops that mean.
TEST(PowerSgd, SpendsTheResidualOfAFiniteBucketBesideOneThatIsNot) {
  const auto gradients = random_gradients(60 * 40 + 30 * 50, at::kFloat);
  testing::run_ranks(2, [&](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
    const auto step = [&](CommHook& hook, int64_t number, float factor) {
      const at::Tensor all = gradients(rank, number);
      auto first = make_parameters_bucket({parameters[0]}, {all.narrow(0, 0, 2400) * factor}, 0, 2);
      const auto of_first = hook.runHook(first);
      auto second = make_parameters_bucket({parameters[1]}, {all.narrow(0, 2400, 1500)}, 1, 2);
      const auto of_second = hook.runHook(second);
      of_first->waitAndThrow();
      of_second->waitAndThrow();
      return std::pair(of_first->value().toTensor(), of_second->value().toTensor());
    };
    const auto hook = create_comm_hook("power_sgd_rank2", {.process_group = group, .power_sgd = {.start = 0}});
    const auto other = create_comm_hook("power_sgd_rank2", {.process_group = group, .power_sgd = {.start = 0}});
    step(*hook, 0, 1);
    step(*other, 0, 1);
    HookState before = hook->state(named(parameters));
    for (auto& [name, value] : before) value = value.clone();
    const auto [bad, good] = step(*hook, 1, rank == 1 ? std::numeric_limits<float>::infinity() : 1);
    const auto expected = step(*other, 1, 1).second;
    EXPECT_TRUE(bad.isnan().all().item<bool>());
    EXPECT_TRUE(at::equal(good, expected));
    const HookState after = hook->state(named(parameters));
    const HookState finite = other->state(named(parameters));
    for (const std::string name : {"residual.0", "q.0"})
      EXPECT_TRUE(at::equal(after.at(name), before.at(name))) << name;
    for (const std::string name : {"residual.1", "q.1"}) {
      EXPECT_TRUE(at::equal(after.at(name), finite.at(name))) << name;
      EXPECT_FALSE(at::equal(after.at(name), before.at(name))) << name;
    }
  });
}

TEST(PowerSgd, BeginsWithPlainSteps) {
  for (const int64_t start : {0, 1, 3}) {
    const PowerSgdRun run{.options = {.rank = 1, .start = start}, .shapes = {{60, 40}}, .steps = 4};
    const auto gradients = random_gradients(2400, at::kFloat);
    const PowerSgdResult result = run_power_sgd(run, gradients);
    for (int64_t step = 0; step < run.steps; ++step) {
      const at::Tensor mean = float64_mean(gradients, 2, step);
      EXPECT_EQ(l2_norm(result.means[0][step] - mean) <= 8 * kRounding * l2_norm(mean), step < start)
          << start << " " << step;
    }
    EXPECT_EQ(result.states[0].at("iterations").item<int64_t>(), 4);
    EXPECT_EQ(result.states[0].at("draws").item<int64_t>(), 1);
  }
}

constexpr WireOptions kTenGbit{.node_size = 1, .link_gbit = 10, .link_us = 50};

// With this link small messages use one hop: W - 1 messages of P, Q and the rest. Earlier steps count as an all-reduce.
TEST(PowerSgd, CountsWhatItSends) {
  for (const int64_t world_size : {1, 2, 3}) {
    testing::run_ranks(world_size, [&](int64_t rank, const Group& group) {
      const auto hook =
          create_comm_hook("power_sgd_rank2", {.process_group = group, .wire = kTenGbit, .power_sgd = {.start = 1}});
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({33})};
      const auto gradients = random_gradients(2433, at::kFloat);
      average_step(*hook, parameters, gradients(rank, 0));
      const int64_t plain = ring_all_reduce_bytes(2433 * 4, world_size);
      EXPECT_EQ(hook->payload_bytes_sent(), plain);
      EXPECT_EQ(hook->compression(), world_size > 1 ? std::optional(1.0) : std::nullopt);
      average_step(*hook, parameters, gradients(rank, 1));
      EXPECT_EQ(hook->payload_bytes_sent() - plain, (world_size - 1) * 4 * (2 * 60 + 2 * 40 + 33));
      const HookOptions options{.process_group = nullptr, .wire = kTenGbit, .power_sgd = {.start = 1}};
      EXPECT_EQ(hook->payload_bytes_sent() - plain, hook_row("power_sgd_rank2")
                                                        .payload_bytes({.numel = 2433, .shapes = {{60, 40}, {33}}},
                                                                       node::NodeLayout::flat(world_size), options));
    });
  }
}

TEST(PowerSgd, SaysHowMuchSmallerFactorsAre) {
  const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({33})};
  const auto gradients = random_gradients(2433, at::kFloat);
  testing::run_ranks(3, [&](int64_t rank, const Group& group) {
    const auto after_steps = [&](const char* name, const PowerSgdOptions& options, const at::Tensor& bucket) {
      const auto hook =
          create_comm_hook(name, {.process_group = group, .wire = {.node_size = 1}, .power_sgd = options});
      average_step(*hook, parameters, bucket);
      const auto of_first = hook->compression();
      average_step(*hook, parameters, bucket);
      EXPECT_EQ(hook->compression(), of_first);
      return of_first;
    };
    const at::Tensor bucket = gradients(rank, 0);
    EXPECT_EQ(after_steps("power_sgd", {.start = 0}, bucket), 2433.0 / (60 + 40 + 33));
    EXPECT_EQ(after_steps("power_sgd", {.start = 0, .wire = WireFormat::kBf16}, bucket), 2 * 2433.0 / (60 + 40 + 33));
    EXPECT_EQ(after_steps("power_sgd", {.start = 0, .alternate = true}, bucket), 2433.0 / (50 + 33))
        << "of two steps on average";
    EXPECT_EQ(after_steps("batched_power_sgd_rank2", {.start = 0}, bucket), 2433.0 / (2 * 50 + 2 * 50));
    EXPECT_EQ(after_steps("power_sgd", {.start = 0}, bucket.to(at::kDouble)), 0.5 * 2433.0 / (60 + 40 + 33));
  });
}

// In blocks of 128; P with 60 elements leaves part of a block empty.
TEST(PowerSgd, SendsInBlocksWhatTheTableSays) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    for (const std::string name : {"power_sgd", "batched_power_sgd"}) {
      for (const bool alternate : {false, true}) {
        const PowerSgdOptions power_sgd{.start = 0, .alternate = alternate, .wire = WireFormat::kInt8B128};
        const HookOptions options{.process_group = group, .wire = {.node_size = 1}, .power_sgd = power_sgd};
        const auto hook = create_comm_hook(name, options);
        average_step(*hook, {at::zeros({60, 40}), at::zeros({33})}, random_gradients(2433, at::kFloat)(rank, 0));
        EXPECT_EQ(hook->payload_bytes_sent(), hook_row(name).payload_bytes({.numel = 2433, .shapes = {{60, 40}, {33}}},
                                                                           node::NodeLayout::flat(2), options))
            << name << " " << alternate;
      }
    }
  });
}

TEST(PowerSgd, RefusesWrongOptions) {
  const auto complaint = [](const std::string& hook, const PowerSgdOptions& options) {
    return testing::error_message<c10::ValueError>([&] { check_comm_hook(hook, {}, {}, {}, options); });
  };
  EXPECT_THAT(complaint("power_sgd", {.rank = 0}), HasSubstr("power_sgd_rank: must be at least 1, but is 0"));
  EXPECT_THAT(complaint("power_sgd", {.start = -1}), HasSubstr("power_sgd_start: must not be negative, but is -1"));
  for (const double rate : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_THAT(complaint("power_sgd", {.min_rate = rate}), HasSubstr("power_sgd_min_rate: must be positive, but is"));
  }
  EXPECT_THAT(complaint("power_sgd", {.epsilon = -1}), HasSubstr("power_sgd_epsilon: must not be negative, but is -1"));
  EXPECT_THAT(complaint("power_sgd", {.seed = int64_t{1} << 32}),
              HasSubstr("power_sgd_seed: must be in 0..4294967295, but is 4294967296"));
  EXPECT_THAT(complaint("power_sgd", {.warm_start = false, .alternate = true}),
              HasSubstr("power_sgd_alternate: needs power_sgd_warm_start"));
  EXPECT_THAT(complaint("power_sgd", {.rank = 3, .epsilon = 1e-8, .memory = PowerSgdMemory::kAveraged}),
              HasSubstr("power_sgd_epsilon: 1e-08 has no effect with power_sgd_memory averaged and rank 3"));
  check_comm_hook("power_sgd_rank2", {}, {}, {}, {.epsilon = 1e-8, .memory = PowerSgdMemory::kAveraged});
  check_comm_hook("power_sgd", {}, {}, {}, {.rank = 3, .epsilon = 1e-8});
  EXPECT_THAT(complaint("batched_power_sgd", {.batch = true}),
              HasSubstr("power_sgd_batch: true has no effect with the hook 'batched_power_sgd'"));
  EXPECT_THAT(complaint("int8", {.rank = 4}),
              HasSubstr("power_sgd_rank: 4 has no effect with the hook 'int8'; it is for power_sgd, power_sgd_rank2"));
  EXPECT_THAT(complaint("allreduce", {.min_rate = 3}), HasSubstr("power_sgd_min_rate: 3 has no effect with the hook"));
  EXPECT_THAT(testing::error_message<c10::ValueError>([] { parse_power_sgd_memory("both"); }),
              HasSubstr("power_sgd_memory: must be local or averaged, but is 'both'"));
  for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
    EXPECT_EQ(parse_power_sgd_memory(to_string(memory)), memory);
  }
}

}  // namespace
}  // namespace narrowcast::hooks

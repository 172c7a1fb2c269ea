// PowerSGD if ranks share nodes: messages use two levels, and everything else is as in one level.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "hooks/power_sgd/power_sgd.h"
#include "hooks/table/hook_table.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "tests/hooks/power_sgd/power_sgd_run.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The link is given, because a measured one could change the number of hops.
WireOptions nodes_of(int64_t size) { return {.node_size = size, .link_gbit = 10, .link_us = 50}; }

class PowerSgdLevels : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  static int64_t world_size() { return std::get<0>(GetParam()); }
  static int64_t node_size() { return std::get<1>(GetParam()); }
  static node::NodeLayout layout() { return node::NodeLayout::of_size(world_size(), node_size()); }
};

TEST_P(PowerSgdLevels, KeepWhatTheMeanLacks) {
  expect_all_kept(in_all_formats({.options = {.rank = 2, .start = 0},
                                  .shapes = {{60, 40}, {33}, {30, 50}},
                                  .world_size = world_size(),
                                  .steps = 3,
                                  .wire = nodes_of(node_size())}),
                  60 * 40 + 33 + 30 * 50);
}

// With three or more nodes, uncompressed elements take two hops between them.
TEST_P(PowerSgdLevels, KeepWhatTheMeanLacksOverTwoHops) {
  PowerSgdRun run{.options = {.rank = 2, .start = 0, .wire = WireFormat::kInt8B32},
                  .shapes = {{60, 40}, {500'000}, {30, 50}},
                  .world_size = world_size(),
                  .steps = 2,
                  .wire = nodes_of(node_size())};
  const PowerSgdRun usual = run;
  run.options.alternate = true;
  PowerSgdRun dealt_out = usual;
  dealt_out.options.wire = WireFormat::kVar5;
  expect_all_kept({usual, run, dealt_out}, 60 * 40 + 500'000 + 30 * 50);
}

// The reference is in float64. The difference is float32's rounding error, which grows with each step. A node with a
// wrong weight would be off by at least some hundredths.
TEST_P(PowerSgdLevels, AreWhatTheFormulasSay) {
  std::vector<PowerSgdRun> runs;
  for (const auto& [hook, rows, columns] : {std::tuple("power_sgd", 64, 36), std::tuple("batched_power_sgd", 48, 48)}) {
    for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
      for (const bool alternate : {false, true}) {
        runs.push_back({.hook = hook,
                        .options = {.rank = 2, .start = 0, .alternate = alternate, .memory = memory},
                        .shapes = {{rows, columns}},
                        .world_size = world_size(),
                        .steps = 3,
                        .wire = nodes_of(node_size())});
      }
    }
  }
  const auto gradients = random_gradients(64 * 36, at::kFloat);
  const std::vector<PowerSgdResult> results = run_power_sgd(runs, gradients);
  for (size_t i = 0; i < runs.size(); ++i) {
    expect_equal_replicas(results[i]);
    const int64_t rows = runs[i].shapes[0][0];
    const int64_t columns = runs[i].shapes[0][1];
    ReferencePowerSgd reference(runs[i].options, rows, columns, world_size(), at::kFloat);
    for (int64_t step = 0; step < runs[i].steps; ++step) {
      std::vector<at::Tensor> matrices;
      for (int64_t rank = 0; rank < world_size(); ++rank) {
        matrices.push_back(gradients(rank, step).to(at::kDouble).view({rows, columns}));
      }
      const at::Tensor expected = reference.step(matrices).flatten();
      EXPECT_LE(l2_norm(results[i].means[0][step] - expected), 1e-3 * l2_norm(expected))
          << runs[i].hook << " step " << step << " alternate " << runs[i].options.alternate;
    }
  }
}

// Only the owners of ranges send, and only between nodes. The row has the bytes of the rank that sends most.
TEST_P(PowerSgdLevels, SendBetweenNodesWhatTheyOwn) {
  const HookRow& row = hook_row("power_sgd_rank2");
  const node::NodeLayout nodes = layout();
  const auto runs = in_all_formats({.hook = "power_sgd_rank2",
                                    .options = {.start = 0},
                                    .shapes = {{2048, 1024}, {30'000}},
                                    .world_size = world_size(),
                                    .wire = nodes_of(node_size())});
  const auto results = run_power_sgd(runs, [](int64_t, int64_t) { return at::ones({2048 * 1024 + 30'000}); });
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<int64_t>& sent = results[i].payload_bytes;
    for (int64_t rank = 0; rank < world_size(); ++rank) {
      EXPECT_EQ(sent[rank] > 0, nodes.nodes() > 1 && nodes.local_rank_of(rank) < nodes.segments()) << rank;
    }
    const HookOptions options{.process_group = nullptr, .wire = runs[i].wire, .power_sgd = runs[i].options};
    const GradientSizes gradients{.numel = 2048 * 1024 + 30'000, .shapes = runs[i].shapes};
    const auto most = static_cast<double>(row.payload_bytes(gradients, nodes, options));
    const auto of_any = static_cast<double>(*std::ranges::max_element(sent));
    // The row counts the larger of the two factors, and shards may differ by a grain.
    const double grain = static_cast<double>(nodes.nodes() - 1) * 4 * cpu::kWireGrain;
    EXPECT_LE(of_any, most + grain);
    EXPECT_GE(of_any, most * (runs[i].options.alternate ? 0.85 : 1) - grain);
  }
}

// A step that is not finite on one rank changes no state on any rank.
TEST_P(PowerSgdLevels, ForgetAStepThatIsNotFinite) {
  auto runs = in_all_formats({.options = {.rank = 2, .start = 0},
                              .shapes = {{60, 40}, {5}},
                              .world_size = world_size(),
                              .steps = 3,
                              .wire = nodes_of(node_size())});
  const auto random = random_gradients(2405, at::kFloat);
  const auto without = run_power_sgd(runs, random);
  for (PowerSgdRun& run : runs) run.steps = 5;
  // The last element of a matrix, and so of the last block of P or Q, and one uncompressed element.
  const auto with = run_power_sgd(runs, [&](int64_t rank, int64_t step) {
    at::Tensor gradient = random(rank, (step + 1) / 2);
    const bool is_last = rank == world_size() - 1;
    if (is_last && step == 1) gradient[2399].fill_(std::numeric_limits<float>::quiet_NaN());
    if (is_last && step == 3) gradient[2402].fill_(std::numeric_limits<float>::infinity());
    return gradient;
  });
  for (size_t i = 0; i < runs.size(); ++i) {
    for (int64_t rank = 0; rank < world_size(); ++rank) {
      const std::vector<at::Tensor>& means = with[i].means[rank];
      for (const int64_t bad : {1, 3}) EXPECT_TRUE(means[bad].isnan().all().item<bool>()) << rank;
      for (const int64_t good : {0, 2, 4}) {
        EXPECT_TRUE(at::equal(means[good], without[i].means[rank][good / 2])) << i << " step " << good;
      }
    }
  }
}

// One, two, three and four nodes, whole ones and a last one with fewer ranks.
INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgdLevels,
                         ::testing::Values(std::tuple(1, 1), std::tuple(2, 1), std::tuple(2, 2), std::tuple(3, 2),
                                           std::tuple(3, 3), std::tuple(4, 1), std::tuple(4, 2), std::tuple(5, 2),
                                           std::tuple(5, 3), std::tuple(8, 2)),
                         [](const auto& info) {
                           return "world" + std::to_string(std::get<0>(info.param)) + "_nodes_of" +
                                  std::to_string(std::get<1>(info.param));
                         });

// Between four ranks two hops send half the bytes of one hop. The factors have 4 * 2048 and 4 * 1024 elements, of which
// each rank has a quarter.
TEST(PowerSgdOnALink, TakesTheRouteOfTheLink) {
  const GradientSizes sizes{.numel = int64_t{2048} * 1024, .shapes = {{2048, 1024}}};
  testing::run_ranks(4, [&](int64_t rank, const Group& group) {
    const at::Tensor gradient = random_gradients(sizes.numel, at::kFloat)(rank, 0);
    std::vector<at::Tensor> means;
    for (const auto& [gbit, us, messages] : {std::tuple(1e3, 1e6, 3.0), std::tuple(1e-3, 1.0, 1.5)}) {
      const HookOptions options{.process_group = group,
                                .wire = {.node_size = 1, .link_gbit = gbit, .link_us = us},
                                .power_sgd = {.rank = 4, .start = 0}};
      const auto hook = create_comm_hook("power_sgd", options);
      means.push_back(average_step(*hook, {at::zeros({2048, 1024})}, gradient));
      const auto bytes = static_cast<int64_t>(messages * 4 * 4 * (2048 + 1024));
      EXPECT_EQ(hook->payload_bytes_sent(), bytes) << gbit;
      EXPECT_EQ(hook_row("power_sgd").payload_bytes(sizes, node::NodeLayout::flat(4), options), bytes) << gbit;
    }
    EXPECT_TRUE(at::equal(means[0], means[1])) << "float32 is summed in the order of ranks either way";
  });
}

// Float32 sums in the order of ranks are the same through shared memory and over the network. With two ranks they equal
// PyTorch's hook.
TEST(PowerSgdOnOneNode, HasTheBitsOfOneLevelAndSendsNothing) {
  for (const int64_t world_size : {2, 3, 5}) {
    std::vector<PowerSgdRun> runs;
    for (const PowerSgdMemory memory : {PowerSgdMemory::kLocal, PowerSgdMemory::kAveraged}) {
      for (const auto& [rank, alternate] : {std::pair(2, false), std::pair(2, true), std::pair(4, false)}) {
        runs.push_back({.options = {.rank = rank, .start = 0, .alternate = alternate, .memory = memory},
                        .shapes = {{60, 40}, {33}, {30, 50}},
                        .world_size = world_size,
                        .steps = 4});
      }
    }
    const auto gradients = random_gradients(60 * 40 + 33 + 30 * 50, at::kFloat);
    const auto one_level = run_power_sgd(runs, gradients);
    for (PowerSgdRun& run : runs) run.wire = {.levels = Levels::kTwo};
    const auto two_levels = run_power_sgd(runs, gradients);
    for (size_t i = 0; i < runs.size(); ++i) {
      for (int64_t step = 0; step < runs[i].steps; ++step) {
        EXPECT_TRUE(at::equal(one_level[i].means[0][step], two_levels[i].means[0][step])) << step;
      }
      expect_equal_replicas(two_levels[i]);
      EXPECT_THAT(one_level[i].payload_bytes, Each(::testing::Gt(0)));
      EXPECT_THAT(two_levels[i].payload_bytes, Each(0));
    }
  }
}

// On one node nothing is rounded in any format.
TEST(PowerSgdOnOneNode, HasTheSameBitsInAnyFormat) {
  PowerSgdRun run{.options = {.rank = 2, .start = 0}, .shapes = {{60, 40}}, .world_size = 3, .steps = 3, .wire = {}};
  const auto gradients = random_gradients(2400, at::kFloat);
  const PowerSgdResult fp32 = run_power_sgd(run, gradients);
  run.options.wire = WireFormat::kInt4B32;
  const PowerSgdResult int4 = run_power_sgd(run, gradients);
  for (int64_t step = 0; step < run.steps; ++step) EXPECT_TRUE(at::equal(fp32.means[2][step], int4.means[2][step]));
}

// Many buckets of two hooks in flight share a node's memory, which has two slots.
TEST(PowerSgdInLevels, GoesOnWithManyBucketsInFlight) {
  constexpr int64_t kBuckets = 8;
  const auto gradients = random_gradients(2433, at::kFloat);
  std::vector<std::vector<at::Tensor>> means(5);
  testing::run_ranks(5, [&](int64_t rank, const Group& group) {
    const auto make = [&](const PowerSgdOptions& options) {
      return create_comm_hook("power_sgd_rank2", {.process_group = group, .wire = nodes_of(2), .power_sgd = options});
    };
    const std::unique_ptr<CommHook> hooks[] = {make({.start = 0}), make({.start = 0, .alternate = true})};
    std::vector<std::vector<at::Tensor>> parameters;
    for (int64_t i = 0; i < kBuckets; ++i) parameters.push_back({at::zeros({60, 40}), at::zeros({33})});
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      for (int64_t index = 0; index < kBuckets; ++index) {
        for (const auto& hook : hooks) {
          const at::Tensor numbers = gradients(rank, kBuckets * step + index);
          auto bucket = make_parameters_bucket(
              parameters[index], {numbers.narrow(0, 0, 2400), numbers.narrow(0, 2400, 33)}, index, kBuckets);
          futures.push_back(hook->runHook(bucket));
        }
      }
      for (const auto& future : futures) {
        future->waitAndThrow();
        means[rank].push_back(future->value().toTensor().clone());
      }
    }
  });
  for (size_t i = 0; i < means[0].size(); ++i) {
    for (const auto& of_rank : means) EXPECT_TRUE(at::equal(of_rank[i], means[0][i])) << i;
    EXPECT_TRUE(means[0][i].isfinite().all().item<bool>());
  }
}

// The rounding error between nodes becomes part of a rank's own residual, and is kept when the nodes change.
TEST(PowerSgdInLevels, GoesOnWithOtherNodes) {
  constexpr int64_t kNumel = 60 * 40 + 33;
  const auto gradients = random_gradients(kNumel, at::kFloat);
  for (const int64_t later_size : {1, 2, 3, 4}) {
    std::vector<HookState> states(4);
    at::Tensor means = at::zeros({kNumel}, at::kDouble);
    testing::run_ranks(4, [&](int64_t rank, const Group& group) {
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({33})};
      const auto make = [&](int64_t node_size) {
        return create_comm_hook("power_sgd_rank2", {.process_group = group,
                                                    .wire = nodes_of(node_size),
                                                    .power_sgd = {.start = 0, .wire = WireFormat::kInt8B32}});
      };
      const auto take_step = [&](CommHook& hook, int64_t step) {
        const at::Tensor mean = average_step(hook, parameters, gradients(rank, step));
        if (rank == 0) means += mean;
        return mean;
      };
      const auto hook = make(2);
      for (int64_t step = 0; step < 2; ++step) take_step(*hook, step);
      const auto later = make(later_size);
      later->load_state({.world_size = 4, .states = {hook->state(named(parameters))}, .first = {}}, named(parameters));
      for (int64_t step = 2; step < 4; ++step) {
        const at::Tensor mean = take_step(*later, step);
        const at::Tensor expected = average_step(*hook, parameters, gradients(rank, step));
        EXPECT_TRUE(later_size != 2 || at::equal(mean, expected)) << "resumed where it was";
      }
      states[rank] = later->state(named(parameters));
    });
    at::Tensor given = at::zeros({kNumel}, at::kDouble);
    for (int64_t step = 0; step < 4; ++step) given += float64_mean(gradients, 4, step);
    EXPECT_LE(l2_norm(given - means - kept_of(states)), rounding_of_all_kept(4) * l2_norm(given)) << later_size;
  }
}

TEST(PowerSgdInLevels, RefusesLevelsThatThereCannotBe) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    const auto make = [&](const WireOptions& wire) {
      return create_comm_hook("power_sgd", {.process_group = group, .wire = wire, .power_sgd = {.start = 0}});
    };
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { make({.levels = Levels::kTwo, .node_size = 1}); }),
                HasSubstr("levels: two contradicts node_size: 1"));
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}, at::kDouble)};
    const at::Tensor gradients = at::ones({2400}, at::kDouble);
    for (const WireOptions& wire : {WireOptions{.levels = Levels::kTwo}, WireOptions{.node_size = 2}}) {
      const auto hook = make(wire);
      EXPECT_THAT(testing::error_message<c10::ValueError>([&] { average_step(*hook, parameters, gradients); }),
                  HasSubstr("power_sgd: float64 gradients support only one level"));
    }
    average_step(*make({}), parameters, gradients);
  });
}

TEST(PowerSgdRow, SaysWhatANodesMemoryHolds) {
  const GradientSizes gradients{.numel = 60 * 40 + 33, .shapes = {{60, 40}, {33}}};
  const auto staged = [&](const char* hook, const PowerSgdOptions& options) {
    return hook_row(hook).staged_numel(gradients, {.process_group = nullptr, .power_sgd = options});
  };
  EXPECT_EQ(staged("power_sgd", {}), 60 + 40 + 33);
  EXPECT_EQ(staged("power_sgd_rank2", {}), 120 + 80 + 33);
  EXPECT_EQ(staged("power_sgd_rank2", {.alternate = true}), 120 + 33);
  EXPECT_EQ(staged("batched_power_sgd", {}), 50 + 50);
}

}  // namespace
}  // namespace narrowcast::hooks

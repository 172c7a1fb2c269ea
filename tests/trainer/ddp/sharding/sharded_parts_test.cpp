// An optimizer that is sharded over all ranks, beside one that is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/collectives/all_gather/all_gather_job.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"
#include "trainer/ddp/optimization/gradients.h"

namespace narrowcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSteps = 5;  // Buckets are rebuilt before the second one.
constexpr double kMostNorm = 0.05;

std::string name_of(const OverAllCase& value) {
  static constexpr const char* kWays[] = {"",        "_feedback", "_exemption",  "_views",
                                          "_static", "_unused",   "_accumulated"};
  const std::string nodes = value.layout.node_size ? "_nodes_of_" + std::to_string(*value.layout.node_size) : "";
  return value.hook + "_" + std::to_string(value.layout.world_size) + nodes + kWays[static_cast<size_t>(value.way)];
}

class OverAllRanks : public ::testing::TestWithParam<OverAllCase> {};

// In fp32, parameters and norms have the bits of an optimizer without shards, with every hook.
TEST_P(OverAllRanks, ExactParametersHaveTheBitsOfATrainingWithoutShards) {
  run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
    NetTraining whole(group, ddp_options_of(GetParam()));
    NetTraining parts(group, ddp_options_of(GetParam()));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
    for (int64_t step = 1; step <= kSteps; ++step) {
      compute_gradients(whole, step, GetParam());
      const double norm = clip_gradient_norm(whole.parameters(), kMostNorm);
      whole.adamw->step();
      compute_gradients(parts, step, GetParam());
      EXPECT_EQ(sharded.clip_gradient_norm(kMostNorm), norm) << "step " << step;
      EXPECT_GT(norm, kMostNorm);
      sharded.step();
      expect_equal_parameters(parts, whole, "rank " + std::to_string(rank) + ", step " + std::to_string(step));
    }
    EXPECT_EQ(sharded.largest_difference(), 0);
    EXPECT_EQ(sharded.elements(), 150 * 150 * 2 + 150 * 2 + 150 * 3 + 3);
  });
}

// The exchange of parameters overlaps with the next forward pass, which waits for each layer.
TEST_P(OverAllRanks, OverlappedStepsHaveTheSameBits) {
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128}) {
    run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
      NetTraining waiting(group, ddp_options_of(GetParam()));
      NetTraining overlapped(group, ddp_options_of(GetParam()));
      ShardedOptimizer steps(*waiting.adamw, waiting.ddp.reducer(), ShardOptions().parameter_format(format));
      ShardedOptimizer halves(*overlapped.adamw, overlapped.ddp.reducer(), ShardOptions().parameter_format(format));
      overlapped.ddp.module()->before_layer = [&](const torch::nn::Module& layer) {
        halves.wait_for(layer.parameters());
      };
      for (int64_t step = 1; step <= kSteps; ++step) {
        compute_gradients(waiting, step, GetParam());
        steps.step();
        compute_gradients(overlapped, step, GetParam());
        halves.start_step();
      }
      halves.finish_step();
      expect_equal_parameters(overlapped, waiting, "rank " + std::to_string(rank));
      EXPECT_EQ(halves.largest_difference(), steps.largest_difference());
    });
  }
}

// A code of int8_b128 is off by at most half a step. The step is a bfloat16, at most 1 + 2^-7 times 1/127 of the
// largest number of its block. So a master differs from its parameter by at most that much of the largest difference
// that was sent, which is at most the largest change of a parameter and what remains.
TEST_P(OverAllRanks, DifferencesKeepReplicasEqualAndCloseToTheMasters) {
  run_ranks(GetParam().layout.world_size, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of(GetParam()));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    for (int64_t step = 1; step <= kSteps; ++step) {
      std::vector<at::Tensor> before;
      for (const at::Tensor& parameter : parts.parameters()) before.push_back(parameter.detach().clone());
      compute_gradients(parts, step, GetParam());
      sharded.step();
      double change = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        change = std::max(change, largest_magnitude(parts.parameters()[i] - before[i]));
      }
      const double difference = sharded.largest_difference();
      EXPECT_GT(difference, 0);
      const double rounding = 1e-7;  // Parameters are below 1.
      EXPECT_LT(difference, (change + difference) * (1 + 1.0 / 128) / 254 + rounding) << "step " << step;
      EXPECT_TRUE(same_on_all_ranks(group, parts.parameters())) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, OverAllRanks,
    ::testing::Values(OverAllCase{"int8", {2}}, OverAllCase{"int8", {3}}, OverAllCase{"int8", {4, 2}},
                      OverAllCase{"int8", {4, 3}}, OverAllCase{"int4", {5, 1}}, OverAllCase{"int8", {8, 4}},
                      OverAllCase{"int8", {3, 3}}, OverAllCase{"int8", {4, 2}, Way::kErrorFeedback},
                      OverAllCase{"int4", {3, 1}, Way::kErrorFeedback}, OverAllCase{"int8", {4, 2}, Way::kExemption},
                      OverAllCase{"int8", {3, 1}, Way::kBucketViews}, OverAllCase{"int8", {3, 1}, Way::kStaticGraph},
                      OverAllCase{"int8", {3, 1}, Way::kUnusedParameters},
                      OverAllCase{"int8", {3, 1}, Way::kAccumulation}, OverAllCase{"allreduce", {3}},
                      OverAllCase{"none", {2}}, OverAllCase{"bf16_compress", {4}}, OverAllCase{"int6", {6, 2}},
                      OverAllCase{"fp8", {7, 3}}, OverAllCase{"power_sgd", {3, 1}}),
    [](const auto& info) { return name_of(info.param); });

// Candidates of auto average shards, if they can. Its choice follows from measurements. Variable formats choose widths
// by the values of a message, and so have other bits than without shards.
class OverAllRanksWithOtherBits : public ::testing::TestWithParam<std::string> {};

TEST_P(OverAllRanksWithOtherBits, ReplicasStayEqual) {
  run_ranks(3, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of({GetParam(), {3, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    for (int64_t step = 1; step <= kSteps; ++step) {
      compute_gradients(parts, step, {});
      sharded.step();
      EXPECT_TRUE(same_on_all_ranks(group, parts.parameters())) << "step " << step;
    }
  });
}

// 45,753 elements are 45 grains of 1024: 11 for ranks 0 to 2, and for rank 3 the rest. In each of two hops a rank sends
// its shard to three others, or their shards to them.
INSTANTIATE_TEST_SUITE_P(Hooks, OverAllRanksWithOtherBits, ::testing::Values("auto", "var6", "var5", "var3"),
                         [](const auto& info) { return info.param; });

TEST(OverAllRanksBytes, ParametersTakeThePlaceOfTheSecondHop) {
  run_ranks(4, [&](int64_t rank, const Group& group) {
    DdpOptions options = ddp_options_of({"int8", {4, 1}}).bucket_cap_mb(100);
    hooks::WireOptions wire = options.wire();
    wire.link_gbit = 0.0001;  // So slow that two hops are best.
    wire.link_us = 1;
    options.wire(wire);
    NetTraining whole(group, options);
    NetTraining parts(group, options);
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    whole.backward(1);
    parts.backward(1);
    sharded.step();
    const auto bytes_of = [](int64_t shard) {
      return encoded_size(shard < 3 ? 11 * 1024 : 45'753 - 33 * 1024, WireFormat::kInt8B128);
    };
    int64_t others = 0;
    for (int64_t shard = 0; shard < 4; ++shard) others += shard == rank ? 0 : bytes_of(shard);
    EXPECT_EQ(whole.ddp.payload_bytes_sent(), others + 3 * bytes_of(rank));
    EXPECT_EQ(parts.ddp.payload_bytes_sent(), others);
    EXPECT_EQ(sharded.payload_bytes_sent(), 3 * (bytes_of(rank) + collectives::AllGatherJob::kHeaderBytes));
  });
}

// A training is saved and resumed, each with its own `parameter_format`.
struct Resumed {
  std::string name;
  WireFormat saved;
  std::optional<WireFormat> resumed;  // Empty: within nodes.
  int64_t world_size;
  std::optional<int64_t> node_size;
  bool same_bits;  // As the training that was not interrupted.
};

class OverAllRanksResumed : public ::testing::TestWithParam<Resumed> {};

TEST_P(OverAllRanksResumed, GoOnFromTheSavedState) {
  const OverAllCase before{"int8", {4, 2}};
  hooks::HookState saved;
  ReducerState reducer;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> later;
  run_ranks(4, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of(before));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), ShardOptions().parameter_format(GetParam().saved));
    for (int64_t step = 1; step <= 3; ++step) {
      compute_gradients(parts, step, {});
      sharded.step();
    }
    const hooks::HookState state = sharded.state(parts.named());
    EXPECT_EQ(state.empty(), rank != 0);
    if (rank == 0) {
      saved = state;
      reducer = parts.ddp.state();
      for (const at::Tensor& parameter : parts.parameters()) parameters.push_back(parameter.detach().clone());
    }
    compute_gradients(parts, 4, {});
    sharded.step();
    if (rank == 0) {
      for (const at::Tensor& parameter : parts.parameters()) later.push_back(parameter.detach().clone());
    }
  });
  EXPECT_EQ(saved.count("first.weight.master"), GetParam().saved == WireFormat::kFp32 ? 0 : 1);
  EXPECT_EQ(saved.at("last.bias.exp_avg").sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(saved.at("nothing.exp_avg").sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(saved.at("nothing.step").item<int64_t>(), 3);
  run_ranks(GetParam().world_size, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {GetParam().world_size, GetParam().node_size}}));
    std::optional<ShardedOptimizer> sharded;
    if (GetParam().resumed) {
      sharded.emplace(*parts.adamw, parts.ddp.reducer(), ShardOptions().parameter_format(GetParam().resumed));
    } else {
      sharded.emplace(*parts.adamw, group, ShardOptions().node_size(GetParam().node_size));
    }
    ReducerState own = reducer;
    own.hook.states = {own.hook.states[0]};
    if (GetParam().world_size == 4) parts.ddp.load_state(own);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < parameters.size(); ++i) parts.parameters()[i].copy_(parameters[i]);
    }
    sharded->load_state(saved, parts.named());
    compute_gradients(parts, 4, {});
    sharded->step();
    EXPECT_TRUE(same_on_all_ranks(group, parts.parameters()));
    for (size_t i = 0; i < later.size(); ++i) {
      const bool is_equal = GetParam().same_bits || later[i].numel() == 0;
      EXPECT_EQ(at::equal(parts.parameters()[i], later[i]), is_equal) << "rank " << rank << ", " << i;
      // Adam's fourth step is at most twice the learning rate; another world averages other batches.
      EXPECT_LT(largest_magnitude(parts.parameters()[i] - later[i]), 4 * 0.02);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OverAllRanksResumed,
    ::testing::Values(Resumed{"exact", WireFormat::kFp32, WireFormat::kFp32, 4, 2, true},
                      Resumed{"differences", WireFormat::kInt8B128, WireFormat::kInt8B128, 4, 2, true},
                      Resumed{"exact_within_nodes", WireFormat::kFp32, std::nullopt, 4, 2, true},
                      Resumed{"differences_in_another_world", WireFormat::kInt8B128, WireFormat::kInt8B128, 3, 1,
                              false},
                      Resumed{"differences_as_exact", WireFormat::kInt8B128, WireFormat::kFp32, 4, 2, false},
                      Resumed{"exact_as_differences", WireFormat::kFp32, WireFormat::kInt4B32, 2, 1, false}),
    [](const auto& info) { return info.param.name; });

TEST(OverAllRanksNorm, AnElementThatIsNotFiniteReachesAllRanks) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    parts.backward(1);
    EXPECT_TRUE(std::isfinite(sharded.gradient_norm()));
    if (rank == 2) sharded.own_gradients().back()[0] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(sharded.gradient_norm(), std::numeric_limits<double>::infinity());
  });
}

// A forward pass between the average and the step rebuilds the buckets: the shards stay those of the averages.
TEST(OverAllRanksBuckets, MayBeRebuiltBetweenTheAverageAndTheStep) {
  for (const OverAllCase& value : {OverAllCase{"int8", {3, 1}}, OverAllCase{"none", {3}}}) {
    run_ranks(3, [&](int64_t rank, const Group& group) {
      NetTraining whole(group, ddp_options_of(value));
      NetTraining parts(group, ddp_options_of(value));
      ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
      for (int64_t step = 1; step <= 3; ++step) {
        compute_gradients(whole, step, {});
        whole.adamw->step();
        compute_gradients(parts, step, {});
        parts.loss_of_step(100);
        EXPECT_EQ(parts.ddp.bucket_bytes().size(), 3U) << "step " << step;
        sharded.step();
        expect_equal_parameters(parts, whole, "rank " + std::to_string(rank) + ", step " + std::to_string(step));
      }
    });
  }
}

// Masters begin with the values before the first step, also if they were loaded after the optimizer was sharded.
TEST(OverAllRanksMasters, BeginWithTheParametersOfTheFirstStep) {
  run_ranks(2, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {2, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : parts.parameters()) parameter.fill_(7);
    }
    parts.backward(1);
    sharded.step();
    for (const at::Tensor& parameter : parts.parameters()) {
      EXPECT_LT(largest_magnitude(parameter - 7), 0.1) << "a few learning rates, and decay";
    }
    const at::Tensor first = parts.ddp.module()->first->weight;
    const at::NoGradGuard no_grad;
    first[0][0] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sharded.largest_difference()));
  });
}

// An optimizer of whole parameters over all ranks, also with nodes of unequal sizes: hooks average all elements.
TEST(OverAllRanksWhole, ParametersStayWhole) {
  for (const ShardLayout& layout : {ShardLayout{3, 1}, ShardLayout{4, 3}, ShardLayout{5, 2}}) {
    run_ranks(layout.world_size, [&](int64_t rank, const Group& group) {
      NetTraining whole(group, ddp_options_of({"int8", layout}));
      NetTraining parts(group, ddp_options_of({"int8", layout}));
      ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(),
                               ShardOptions().whole_parameters(true).parameter_format(WireFormat::kFp32));
      for (int64_t step = 1; step <= 2; ++step) {
        compute_gradients(whole, step, {});
        whole.adamw->step();
        compute_gradients(parts, step, {});
        EXPECT_EQ(sharded.gradient_norm(), gradient_norm(whole.parameters()).item<double>());
        sharded.step();
        expect_equal_parameters(parts, whole, "rank " + std::to_string(rank));
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast::testing

// Sharded optimizers of models so small that some shards are empty. Their parameters may have no elements at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/codec/wire_format.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/held_by_ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;
using Group = ProcessGroupPtr;
using Rows = std::vector<int64_t>;  // Of the parameters, which have 3 columns.

constexpr int64_t kSmallSteps = 3;  // Buckets are rebuilt before the second one.

struct SmallModelImpl : torch::nn::Module {
  explicit SmallModelImpl(const Rows& rows) {
    for (const int64_t count : rows) {
      all.push_back(register_parameter("p" + std::to_string(all.size()), seeded_randn(all.size(), {count, 3})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& parameter : all) sum = sum + (parameter * x).square().sum();
    return sum;
  }
  std::vector<at::Tensor> all;
};
TORCH_MODULE(SmallModel);

struct SmallTraining {
  SmallTraining(const Group& group, const Rows& rows, const std::string& hook, std::optional<int64_t> node_size)
      : ddp(SmallModel(rows), group, DdpOptions().hook(hook).wire({.node_size = node_size})),
        adamw(ddp.module()->parameters(), torch::optim::AdamWOptions(0.01)) {}

  void backward(int64_t step) {
    ddp.zero_grad();
    const auto seed = static_cast<uint64_t>(100 * step + ddp.process_group()->getRank());
    ddp.backward(ddp.forward(seeded_randn(seed, {3})));
  }
  const std::vector<at::Tensor>& parameters() { return ddp.module()->all; }
  std::vector<hooks::NamedParameter> named() {
    std::vector<hooks::NamedParameter> named;
    for (const auto& parameter : ddp.module()->named_parameters()) {
      named.push_back({parameter.key(), parameter.value()});
    }
    return named;
  }

  DistributedDataParallel<SmallModel> ddp;
  torch::optim::AdamW adamw;
};

struct SmallCase {
  std::string name;
  Rows rows;
  ShardLayout layout;
};

void PrintTo(const SmallCase& value, std::ostream* out) { *out << value.name; }

class EmptyShards : public ::testing::TestWithParam<SmallCase> {
 protected:
  using Make = std::function<void(std::optional<ShardedOptimizer>&, SmallTraining&, const Group&)>;

  SmallTraining training(const Group& group) const {
    return SmallTraining(group, GetParam().rows, "int8", GetParam().layout.node_size);
  }

  // Trains with shards and without, and saves the state of both.
  void expect_bits_of_a_whole_optimizer(const Make& make) const {
    run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
      SmallTraining whole = training(group);
      SmallTraining parts = training(group);
      std::optional<ShardedOptimizer> sharded;
      make(sharded, parts, group);
      for (int64_t step = 1; step <= kSmallSteps; ++step) {
        whole.backward(step);
        whole.adamw.step();
        parts.backward(step);
        sharded->clip_gradient_norm(1e9);
        sharded->step();
      }
      const hooks::HookState state = sharded->state(parts.named());
      for (size_t i = 0; i < GetParam().rows.size(); ++i) {
        EXPECT_TRUE(at::equal(parts.parameters()[i], whole.parameters()[i])) << "rank " << rank << ", parameter " << i;
        if (rank > 0) continue;
        const auto& expected = static_cast<const torch::optim::AdamWParamState&>(
            *whole.adamw.state().at(whole.parameters()[i].unsafeGetTensorImpl()));
        const std::string name = "p" + std::to_string(i);
        ASSERT_TRUE(state.contains(name + ".step")) << name;
        EXPECT_EQ(state.at(name + ".step").item<int64_t>(), expected.step()) << name;
        EXPECT_TRUE(at::equal(state.at(name + ".exp_avg"), expected.exp_avg())) << name;
        EXPECT_TRUE(at::equal(state.at(name + ".exp_avg_sq"), expected.exp_avg_sq())) << name;
      }
    });
  }
};

TEST_P(EmptyShards, WithinNodesHaveTheBitsOfAWholeOptimizer) {
  if (GetParam().layout.node_size == 1) GTEST_SKIP() << "every node has one rank";
  for (const bool shares_parameters : {false, true}) {
    expect_bits_of_a_whole_optimizer([&](auto& sharded, SmallTraining& parts, const Group& group) {
      sharded.emplace(parts.adamw, group, options_of(GetParam().layout).share_parameters(shares_parameters));
    });
  }
}

TEST_P(EmptyShards, OverAllRanksHaveTheBitsOfAWholeOptimizer) {
  for (const bool whole_parameters : {false, true}) {
    for (const int64_t copies : {1, 2}) {
      if (copies == 2 && !GetParam().layout.node_size) continue;
      expect_bits_of_a_whole_optimizer([&](auto& sharded, SmallTraining& parts, const Group& /*group*/) {
        sharded.emplace(
            parts.adamw, parts.ddp.reducer(),
            ShardOptions().parameter_format(WireFormat::kFp32).whole_parameters(whole_parameters).copies(copies));
      });
    }
  }
}

// Saved by one world, and loaded by another one. In most layouts two formats are enough.
TEST_P(EmptyShards, AreSentAndResumedAsDifferences) {
  const bool tries_all = GetParam().name == "two_shards_of_three" || GetParam().name == "unequal_nodes";
  for (const WireFormat format : kWireFormats) {
    if (codec::wire::is_sparse(format)) continue;  // Refused.
    if (!tries_all && format != WireFormat::kInt8B128 && format != WireFormat::kVar4) continue;
    const bool has_copies = GetParam().layout.node_size && format != WireFormat::kFp16;
    const ShardOptions options = ShardOptions().parameter_format(format).copies(has_copies ? 2 : 1);
    HeldByRanks held;
    hooks::HookState saved;
    run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
      SmallTraining parts = training(group);
      ShardedOptimizer sharded(parts.adamw, parts.ddp.reducer(), options);
      for (int64_t step = 1; step <= kSmallSteps; ++step) {
        parts.backward(step);
        sharded.step();
      }
      EXPECT_LT(sharded.largest_difference(), 0.05) << format << ", the steps are at most 0.03 or so";
      EXPECT_TRUE(same_on_all_ranks(group, parts.parameters())) << format;
      held.add(rank, sharded.parts().held_pieces(parts.named()));
      if (hooks::HookState state = sharded.state(parts.named()); rank == 0) saved = std::move(state);
    });
    if (has_copies) held.expect_two_equal_copies({"exp_avg", "exp_avg_sq"});
    run_ranks(5 - GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
      if (group->getSize() == 1) return;
      SmallTraining parts(group, GetParam().rows, "int8", 1);
      ShardedOptimizer sharded(parts.adamw, parts.ddp.reducer(), ShardOptions().parameter_format(format));
      sharded.load_state(saved, parts.named());
      const hooks::HookState again = sharded.state(parts.named());
      EXPECT_EQ(again.size(), rank == 0 ? saved.size() : 0);
      for (const auto& [name, tensor] : again) EXPECT_TRUE(at::equal(tensor, saved.at(name))) << name;
      parts.backward(kSmallSteps + 1);
      sharded.step();
      EXPECT_TRUE(same_on_all_ranks(group, parts.parameters())) << format;
    });
  }
}

// A shard has grains of 1024 elements over all ranks, and of 64 within nodes.
INSTANTIATE_TEST_SUITE_P(Models, EmptyShards,
                         ::testing::Values(SmallCase{"two_shards_of_three", {0, 5, 0, 700, 0}, {3, 1}},
                                           SmallCase{"one_shard_of_two", {0, 5, 0}, {2, 1}},
                                           SmallCase{"one_shard_of_a_node", {5, 0}, {2}},
                                           SmallCase{"one_shard_of_two_nodes", {0, 5}, {4, 2}},
                                           SmallCase{"unequal_nodes", {0, 5, 30}, {3, 2}},
                                           SmallCase{"no_elements", {0, 0}, {2, 1}},
                                           SmallCase{"no_elements_in_nodes", {0, 0}, {3, 2}}),
                         [](const auto& info) { return info.param.name; });

class FailingAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  at::Tensor step(LossClosure /*closure*/ = nullptr) override { TORCH_CHECK_VALUE(false, "a step that fails"); }
};

// Nothing is exchanged but the failure.
TEST(EmptyShardsErrors, AFailureReachesAllRanksWithoutElements) {
  for (const bool is_over_all : {false, true}) {
    run_ranks(2, [&](int64_t rank, const Group& group) {
      SmallTraining parts(group, {0}, "none", std::nullopt);
      FailingAdamW failing(parts.parameters(), torch::optim::AdamWOptions(0.01));
      torch::optim::AdamW& inner = rank == 1 ? failing : parts.adamw;
      std::optional<ShardedOptimizer> sharded;
      is_over_all ? sharded.emplace(inner, parts.ddp.reducer()) : sharded.emplace(inner, group);
      parts.backward(1);
      const auto step = [&] { sharded->step(); };
      if (rank == 1) {
        EXPECT_THAT(error_message<c10::ValueError>(step), HasSubstr("a step that fails"));
      } else {
        EXPECT_THAT(error_message<c10::DistBackendError>(step), HasSubstr("exchange"));
      }
    });
  }
}

}  // namespace
}  // namespace narrowcast::testing

// Parameters that forked ranks share. The suites fork, so they must run before autograd is used.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/memory_use.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ShardOptions shared(const ShardLayout& layout = {}) { return options_of(layout).share_parameters(true); }

TEST(SharedRanksDeathTest, TakeTheStepsOfTheOptimizerBitForBit) {
  const EqualTraining alone = trained_alone(optimizer_cases()[0], kShardSteps);
  for (const ShardLayout& layout : {ShardLayout{2}, ShardLayout{4}, ShardLayout{4, 3}}) {
    const auto codes = fork_ranks(layout.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
      EqualTraining training(optimizer_cases()[0]);
      ShardedOptimizer sharded(*training.optimizer, group, shared(layout));
      for (int64_t step = 1; step <= kShardSteps; ++step) {
        training.compute_gradients(step);
        sharded.step();
      }
      for (size_t i = 0; i < training.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(training.parameters[i], alone.parameters[i])) << "rank " << rank << ", parameter " << i;
      }
      wait_for_ranks(group);
    });
    EXPECT_THAT(codes, Each(kRankPassed));
  }
}

// An optimizer whose rank dies in its step.
class DyingSteps final : public torch::optim::SGD {
 public:
  DyingSteps(const at::Tensor& parameter, int code) : SGD({parameter}, torch::optim::SGDOptions(1)), code_(code) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (code_ != 0) ::_exit(code_);
    return SGD::step(std::move(closure));
  }

 private:
  const int code_;
};

// A rank that dies before its step leaves the parameters as they were; in its step it leaves its own shard.
TEST(SharedRanksDeathTest, ALostRankFailsTheOthers) {
  constexpr int kDies = 7;
  for (const bool in_step : {false, true}) {
    const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
      const at::Tensor parameter = at::zeros({300}).requires_grad_();
      DyingSteps optimizer(parameter, rank == 1 && in_step ? kDies : 0);
      ShardedOptimizer sharded(optimizer, group, shared());
      parameter.mutable_grad() = at::ones({300});
      wait_for_ranks(group);
      if (rank == 1 && !in_step) ::_exit(kDies);
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                  AnyOf(HasSubstr("waiting for rank 1 on the same node failed"),
                        HasSubstr("of this node cancelled an exchange")));
      const double sum = at::sum(parameter).item<double>();
      EXPECT_LE(sum, 0);
      EXPECT_GE(sum, in_step ? -(300. - static_cast<double>(sharded.elements() / 3 - 64)) : 0);
    };
    EXPECT_THAT(fork_ranks(3, body), ElementsAre(kRankPassed, kDies, kRankPassed));
  }
}

constexpr int64_t kTensors = 12;
constexpr int64_t kNumel = int64_t{1} << 20;

struct BytesPerParameter {
  double with_gradients = 0;
  double without_gradients = 0;
};

// After two steps of AdamW.
BytesPerParameter measure(const ProcessGroupPtr& group, const ShardOptions& options) {
  const auto bytes_in_all = [&] {
    wait_for_ranks(group);
    const int64_t bytes = bytes_of_this_process();
    wait_for_ranks(group);
    return bytes;
  };
  const int64_t before = bytes_in_all();
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < kTensors; ++i) parameters.push_back(at::full({kNumel}, 1.).requires_grad_());
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(0.01));
  ShardedOptimizer sharded(adamw, group, options);
  for (int64_t step = 0; step < 2; ++step) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::full({kNumel}, 1e-3);
    sharded.step();
  }
  const auto per_parameter = [&](int64_t bytes) { return static_cast<double>(bytes - before) / (kTensors * kNumel); };
  BytesPerParameter result;
  result.with_gradients = per_parameter(bytes_in_all());
  sharded.zero_grad();
  result.without_gradients = per_parameter(bytes_in_all());
  return result;
}

// The formula's bytes per parameter: 4 of a gradient, 8 / G of AdamW's moments, and 4 of the parameter, or 4 / G if it
// is shared. An exchange of parameters stages two parts of 1 MiB per rank, which the node's memory keeps. The rest of
// the process may change by 3 MiB.
TEST(SharedRanksDeathTest, HoldEachParameterOncePerNode) {
  if (has_sanitized_memory()) GTEST_SKIP() << "a sanitizer needs memory of its own";
  constexpr double kStaged = 2. / kTensors;
  constexpr double kOtherMemory = 3. / kTensors;
  for (const int64_t ranks : {2, 4}) {
    const auto codes = fork_ranks(ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
      const double shard = 1. / static_cast<double>(ranks);
      const BytesPerParameter own = measure(group, ShardOptions());
      const BytesPerParameter shared_bytes = measure(group, shared());
      EXPECT_NEAR(own.without_gradients, 4 + 8 * shard + kStaged, kOtherMemory) << "rank " << rank;
      EXPECT_NEAR(shared_bytes.without_gradients, 12 * shard, kOtherMemory) << "rank " << rank;
      EXPECT_NEAR(shared_bytes.with_gradients, 4 + 12 * shard, kOtherMemory) << "rank " << rank;
    });
    EXPECT_THAT(codes, Each(kRankPassed));
  }
}

}  // namespace
}  // namespace narrowcast::testing

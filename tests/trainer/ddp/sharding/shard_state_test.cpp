#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class ShardStateTest : public ::testing::TestWithParam<OptimizerCase> {};

// Saved in one layout and loaded in another, and in LibTorch's own optimizer.
TEST_P(ShardStateTest, ItsStateGoesOnInAnotherLayoutBitForBit) {
  const EqualTraining alone = trained_alone(GetParam(), kShardSteps);
  hooks::HookState saved;
  std::vector<at::Tensor> parameters;
  run_ranks(4, [&](int64_t rank, const auto& group) {
    EqualTraining training(GetParam());
    ShardedOptimizer sharded(*training.optimizer, group, ShardOptions().node_size(3));
    for (int64_t step = 1; step <= 2; ++step) {
      training.compute_gradients(step);
      sharded.step();
    }
    const hooks::HookState state = sharded.state(training.named());
    EXPECT_TRUE(rank == 0 || state.empty()) << "only rank 0 has it";
    if (rank == 0) {
      saved = state;
      for (const at::Tensor& parameter : training.parameters) parameters.push_back(parameter.detach().clone());
    }
  });
  EXPECT_EQ(saved.empty(), GetParam().name == "SGD");
  EXPECT_EQ(saved.count("p0.step"), GetParam().name.starts_with("SGD") ? 0 : 1);
  for (const ShardLayout& layout : layouts()) {
    run_ranks(layout.world_size, [&](int64_t rank, const auto& group) {
      EqualTraining training(GetParam());
      ShardedOptimizer sharded(*training.optimizer, group, options_of(layout));
      sharded.load_state(saved, training.named());
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < parameters.size(); ++i) training.parameters[i].copy_(parameters[i]);
      for (int64_t step = 3; step <= kShardSteps; ++step) {
        training.compute_gradients(step);
        sharded.step();
      }
      for (size_t i = 0; i < training.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(training.parameters[i], alone.parameters[i])) << "rank " << rank << ", parameter " << i;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ShardStateTest, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ShardState, AStateThatDoesNotFitIsRefused) {
  run_ranks(2, [&](int64_t /*rank*/, const auto& group) {
    const at::Tensor parameter = at::zeros({200}).requires_grad_();
    torch::optim::AdamW adamw({parameter});
    ShardedOptimizer sharded(adamw, group);
    const std::vector<hooks::NamedParameter> named = {{"p", parameter}};
    const hooks::HookState good = {
        {"p.step", hooks::int_tensor(3)}, {"p.exp_avg", at::ones({200})}, {"p.exp_avg_sq", at::ones({200})}};
    const auto refusal = [&](const std::string& name, const at::Tensor& tensor) {
      hooks::HookState state = good;
      state.erase(name);
      if (tensor.defined()) state[name] = tensor;
      return error_message<CorruptInputError>([&] { sharded.load_state(state, named); });
    };
    EXPECT_THAT(refusal("p.step", {}), HasSubstr("'p.step' is missing"));
    EXPECT_THAT(refusal("p.step", at::zeros({1})), HasSubstr("'p.step' is not an integer"));
    EXPECT_THAT(refusal("p.exp_avg", {}), HasSubstr("'p.exp_avg' is missing"));
    EXPECT_THAT(refusal("p.exp_avg_sq", {}), HasSubstr("'p.exp_avg_sq' is missing"));
    EXPECT_THAT(refusal("p.exp_avg", at::zeros({199})), HasSubstr("'p.exp_avg' is Float [199], but the parameter"));
    EXPECT_THAT(refusal("q.exp_avg", at::zeros({1})), HasSubstr("'q.exp_avg' is unknown"));
    EXPECT_TRUE(adamw.state().empty()) << "nothing is changed";
    static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).amsgrad(true);
    EXPECT_THAT(refusal("", {}), HasSubstr("'p.max_exp_avg_sq' is missing"));
    static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).amsgrad(false);
    EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.load_state(good, {}); }), HasSubstr("has no name"));
    sharded.load_state(good, named);
    EXPECT_EQ(adamw.state().size(), 1);
  });
}

}  // namespace
}  // namespace narrowcast::testing

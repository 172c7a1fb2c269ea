#include "trainer/ddp/sharding/optimizer_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>

#include <narrowcast/muon.h>
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

// The state that LibTorch makes has the tensors that the options need, and a copy of it is equal.
TEST(OptimizerKinds, KnowTheStateThatLibTorchMakes) {
  for (const OptimizerCase& value : optimizer_cases()) {
    const EqualTraining training = trained_alone(value, 2);
    const sharding::OptimizerKind* const kind = sharding::kind_of(*training.optimizer);
    ASSERT_NE(kind, nullptr) << value.name;
    EXPECT_TRUE(value.name.starts_with(kind->name));
    const auto& options = training.optimizer->param_groups()[0].options();
    const auto found = training.optimizer->state().find(training.parameters[0].unsafeGetTensorImpl());
    if (found == training.optimizer->state().end()) {
      EXPECT_EQ(value.name, "SGD") << "without momentum it has no state";
      EXPECT_FALSE(kind->needs(options, 0));
      continue;
    }
    const sharding::ParameterState state = kind->read(*found->second);
    EXPECT_EQ(state.step.has_value(), kind->counts_steps(options));
    EXPECT_EQ(state.step.value_or(2), 2);
    ASSERT_EQ(state.tensors.size(), kind->tensors.size());
    const sharding::ParameterState copy = kind->read(*kind->make(state));
    EXPECT_EQ(copy.step, state.step);
    for (size_t i = 0; i < state.tensors.size(); ++i) {
      EXPECT_EQ(state.tensors[i].defined(), kind->needs(options, i)) << value.name << ", " << kind->tensors[i];
      EXPECT_TRUE(copy.tensors[i].is_same(state.tensors[i]));
    }
  }
}

// A matrix has a momentum, and a parameter that AdamW steps has moments and counts steps.
TEST(OptimizerKinds, KnowBothStatesOfMuon) {
  const at::Tensor matrix = seeded_randn(1, {3, 4}).requires_grad_();
  const at::Tensor vector = seeded_randn(2, {5}).requires_grad_();
  OptimizerGroups groups;
  groups.emplace_back(std::vector<at::Tensor>{matrix}, std::make_unique<optim::MuonOptions>());
  groups.emplace_back(std::vector<at::Tensor>{vector}, std::make_unique<torch::optim::AdamWOptions>());
  optim::Muon muon(groups);
  for (at::Tensor parameter : {matrix, vector}) parameter.mutable_grad() = at::ones_like(parameter);
  muon.step();
  const sharding::OptimizerKind& kind = *sharding::kind_of(muon);
  for (size_t i = 0; i < 2; ++i) {
    const auto& group = muon.param_groups()[i];
    const auto& own = *muon.state().at(group.params()[0].unsafeGetTensorImpl());
    const sharding::ParameterState state = kind.read(own);
    const sharding::ParameterState copy = kind.read(*kind.make(state));
    EXPECT_EQ(copy.step, state.step);
    EXPECT_EQ(state.step.has_value(), kind.counts_steps(group.options()));
    for (size_t tensor = 0; tensor < kind.tensors.size(); ++tensor) {
      EXPECT_EQ(state.tensors[tensor].defined(), kind.needs(group.options(), tensor));
      EXPECT_TRUE(copy.tensors[tensor].is_same(state.tensors[tensor]));
    }
  }
  EXPECT_GT(kind.cost(muon.param_groups()[0].options(), {3, 4}), kind.cost(muon.param_groups()[1].options(), {3, 4}));
}

TEST(OptimizerKinds, AreNotOthers) {
  torch::optim::Adagrad adagrad({at::zeros({1}).requires_grad_()});
  EXPECT_EQ(sharding::kind_of(adagrad), nullptr);
}

}  // namespace
}  // namespace narrowcast::testing

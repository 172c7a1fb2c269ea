#include "trainer/ddp/sharding/optimizer_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>

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
    EXPECT_EQ(state.step.has_value(), kind->counts_steps);
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

TEST(OptimizerKinds, AreNotOthers) {
  torch::optim::Adagrad adagrad({at::zeros({1}).requires_grad_()});
  EXPECT_EQ(sharding::kind_of(adagrad), nullptr);
}

}  // namespace
}  // namespace narrowcast::testing

// The states of buckets whose gradients nobody averages: where residuals and factors go when buckets change, and what
// is saved and loaded. power_sgd_hook_state_test.cpp tests that hooks resume with them.
#include "hooks/power_sgd/power_sgd_states.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/collectives/power_sgd/compression_plan.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using collectives::CompressionPlan;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using StatePtr = std::shared_ptr<collectives::LowRankState>;

// Two parameters that are matrices, in states of a hook of rank 2.
class PowerSgdStatesTest : public ::testing::Test {
 protected:
  // Matrices of whole parameters, one each.
  CompressionPlan plan_of(const std::vector<at::Tensor>& parameters) const {
    std::vector<collectives::ShapedRange> shaped;
    int64_t numel = 0;
    for (const at::Tensor& parameter : parameters) {
      shaped.push_back({{numel, parameter.numel()}, parameter.sizes().vec()});
      numel += parameter.numel();
    }
    return batched_ ? collectives::plan_of_square(numel, 2) : collectives::plan_by_layer(numel, shaped, {.rank = 2});
  }

  StatePtr state_of(PowerSgdStates& states, const std::vector<at::Tensor>& parameters, size_t index = 0,
                    size_t count = 1, at::ScalarType dtype = at::kFloat) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(at::zeros_like(parameter));
    const auto bucket = make_parameters_bucket(parameters, gradients, index, count);
    const auto plan = [&] {
      ++plans_;
      return plan_of(parameters);
    };
    return states.state_of(bucket, parameter_ranges(bucket), dtype, plan).state;
  }

  // As after a step: every residual and factor is there.
  static void fill(collectives::LowRankState& state, double first) {
    state.residual.copy_(at::arange(state.residual.numel()) + first);
    state.factor.copy_(at::arange(state.factor.numel()) - first);
    state.known.assign(state.known.size(), true);
  }

  std::vector<NamedParameter> names() const { return {{"a", a_}, {"b", b_}}; }
  FormerRanks former(const HookState& state, int64_t world_size = 1) const {
    return {.world_size = world_size, .states = {state}, .first = {}};
  }

  // The state of a bucket of both parameters, with these entries changed or, if undefined, erased.
  HookState saved_with(const HookState& changes) {
    PowerSgdStates states({.batched = batched_, .rank = 2});
    fill(*state_of(states, {a_, b_}), 1);
    HookState saved = states.state(names());
    for (const auto& [name, value] : changes) {
      saved.erase(name);
      if (value.defined()) saved[name] = value;
    }
    return saved;
  }
  std::string load_error(const HookState& changes) {
    return testing::error_message<CorruptInputError>(
        [&] { PowerSgdStates({.batched = batched_, .rank = 2}).load_state(former(saved_with(changes)), names()); });
  }

  bool batched_ = false;
  int plans_ = 0;
  const at::Tensor a_ = at::zeros({12, 10});
  const at::Tensor b_ = at::zeros({20, 9});
};

TEST_F(PowerSgdStatesTest, AStateStaysWhileItsBucketDoes) {
  PowerSgdStates states({.rank = 2});
  EXPECT_FALSE(states.any_residual().defined());
  const StatePtr state = state_of(states, {a_, b_});
  EXPECT_EQ(state->residual.numel(), 12 * 10 + 20 * 9);
  EXPECT_EQ(state->factor.numel(), 2 * (10 + 9)) << "all Q";
  EXPECT_EQ(state->known, std::vector<bool>({false, false})) << "they must be drawn";
  EXPECT_TRUE(states.any_residual().is_same(state->residual));
  EXPECT_EQ(state_of(states, {a_, b_}), state);
  EXPECT_EQ(plans_, 1);
  EXPECT_NE(state_of(states, {a_, b_}, 0, 1, at::kDouble), state) << "the arithmetic is another one";
  EXPECT_EQ(plans_, 2);
}

TEST_F(PowerSgdStatesTest, AlternatingStepsBeginWithP) {
  PowerSgdStates states({.alternates = true, .rank = 2});
  const StatePtr state = state_of(states, {a_, b_});
  EXPECT_TRUE(state->is_p);
  EXPECT_EQ(state->factor.numel(), 2 * (12 + 20));
  fill(*state, 0);
  EXPECT_THAT(states.state(names()), Contains(Key("p.b")));
}

// Two buckets become one, in the other order, and are two again: residuals and factors go with their parameters.
TEST_F(PowerSgdStatesTest, ParametersTakeTheirStateToOtherBuckets) {
  PowerSgdStates states({.rank = 2});
  fill(*state_of(states, {a_}, 0, 2), 1000);
  fill(*state_of(states, {b_}, 1, 2), 5000);
  HookState before = states.state(names());
  for (auto& [name, value] : before) value = value.clone();
  const StatePtr together = state_of(states, {b_, a_});
  EXPECT_EQ(together->known, std::vector<bool>({true, true}));
  EXPECT_TRUE(at::equal(together->residual, at::cat({before.at("residual.b"), before.at("residual.a")})));
  state_of(states, {a_}, 0, 2);
  state_of(states, {b_}, 1, 2);
  const HookState after = states.state(names());
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, value] : before) EXPECT_TRUE(at::equal(after.at(name), value)) << name;
}

TEST_F(PowerSgdStatesTest, AParameterThatHasLeftAllBucketsIsForgotten) {
  PowerSgdStates states({.rank = 2});
  fill(*state_of(states, {a_, b_}), 1);
  state_of(states, {b_}, 0, 2);
  EXPECT_THAT(states.state(names()), Contains(Key("residual.a"))) << "another bucket of the step may have it";
  state_of(states, {b_}, 1, 2);
  EXPECT_THAT(states.state(names()), Not(Contains(Key("residual.a"))));
}

TEST_F(PowerSgdStatesTest, ABucketWithoutParametersHasAStateOfItsSize) {
  PowerSgdStates states({.batched = true, .rank = 2});
  const auto state_of_size = [&](int64_t numel) {
    return states.state_of(make_bucket(at::zeros({numel})), {}, at::kFloat,
                           [&] { return collectives::plan_of_square(numel, 2); });
  };
  const StatePtr state = state_of_size(100).state;
  fill(*state, 1);
  EXPECT_EQ(state_of_size(100).state, state);
  EXPECT_EQ(state_of_size(121).plan.array_numel, 121);
  EXPECT_EQ(state_of_size(121).state->residual.count_nonzero().item<int64_t>(), 0);
}

TEST_F(PowerSgdStatesTest, RescalesResidualsOfAllBucketsAndOfThoseToCome) {
  PowerSgdStates states({.batched = true, .rank = 2});
  batched_ = true;
  states.load_state(former(saved_with({})), names());
  HookState before = states.state(names());
  for (auto& [name, value] : before) value = value.clone();  // They are views.
  ASSERT_THAT(before, Contains(Key("padding.0")));
  const auto expect_factor = [&](double factor) {
    const HookState after = states.state(names());
    for (const auto& [name, value] : before) {
      const bool is_residual = name.starts_with("residual.") || name.starts_with("padding.");
      EXPECT_TRUE(at::equal(after.at(name), is_residual ? value * factor : value)) << name << " " << factor;
    }
  };
  states.rescale(0.5);
  expect_factor(0.5);
  state_of(states, {a_, b_});
  expect_factor(0.5);
  states.rescale(0.5);
  expect_factor(0.25);
}

// A world of two ranks becomes one of four: each rank's residual counts for twice as many ranks.
TEST_F(PowerSgdStatesTest, ResidualsKeepTheirEffectInAnotherWorld) {
  batched_ = true;
  const HookState saved = saved_with({});
  PowerSgdStates states({.batched = true, .rank = 2, .world_size = 4});
  states.load_state(former(saved, 2), names());
  const HookState loaded = states.state(names());
  EXPECT_TRUE(at::equal(loaded.at("residual.a"), saved.at("residual.a") * 2));
  EXPECT_TRUE(at::equal(loaded.at("q.0"), saved.at("q.0")));
  EXPECT_THAT(loaded, Not(Contains(Key("padding.0")))) << "of other ranks";
}

TEST_F(PowerSgdStatesTest, AFactorOfAnotherShapeIsRefused) {
  EXPECT_EQ(load_error({}), "nothing was thrown");
  EXPECT_THAT(load_error({{"q.a", at::zeros({10})}}), HasSubstr("'q.a' is Float [10], but should be a matrix"));
  EXPECT_THAT(load_error({{"q.a", at::zeros({10, 2}, at::kLong)}}), HasSubstr("'q.a' is Long"));
  EXPECT_THAT(load_error({{"q.a", at::zeros({10, 3})}}),
              HasSubstr("factor of 'a' is [10, 3], which does not fit a matrix of 12 x 10 in rank 2"));
  EXPECT_THAT(load_error({{"q.a", {}}, {"p.a", at::zeros({12, 2})}}), HasSubstr("does not alternate"));
  EXPECT_THAT(load_error({{"residual.b", at::zeros({7})}}),
              HasSubstr("'residual.b' is Float [7], but should be 180 floating-point numbers"));
}

TEST_F(PowerSgdStatesTest, AWholeBucketThatDoesNotFitIsRefused) {
  batched_ = true;  // 300 numbers are a square of 18.
  const at::Tensor beyond = at::tensor({int64_t{0}, int64_t{121}});
  EXPECT_EQ(load_error({}), "nothing was thrown");
  EXPECT_THAT(load_error({{"place.b", beyond}}), HasSubstr("state of bucket 0 leaves a gap at 120"));
  EXPECT_THAT(load_error({{"padding.0", at::zeros({3})}}), HasSubstr("'padding.0' has 3 numbers instead of 24"));
  EXPECT_THAT(load_error({{"q.0", at::zeros({18, 1})}}),
              HasSubstr("factor of bucket 0 is [18, 1], which does not fit its 300 elements"));
}

}  // namespace
}  // namespace narrowcast::hooks

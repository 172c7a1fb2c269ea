// PowerSGD's state from step to step: rebuilt buckets, restarts, changes of the loss scale.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include <narrowcast/errors.h>
#include "hooks/power_sgd/power_sgd.h"
#include "tests/hooks/power_sgd/power_sgd_run.h"
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kOfTwoMatrices = 60 * 40 + 30 * 50;

std::unique_ptr<CommHook> make_hook(const std::string& name, const Group& group, const PowerSgdOptions& options) {
  return create_comm_hook(name, {.process_group = group, .power_sgd = options});
}

// Hooks with each kind of state.
std::vector<std::pair<std::string, PowerSgdOptions>> kinds() {
  return {{"power_sgd_rank2", {.start = 0}},
          {"power_sgd", {.start = 1, .warm_start = false}},
          {"power_sgd", {.rank = 4, .start = 0, .alternate = true}},
          {"power_sgd", {.rank = 3, .start = 0, .memory = PowerSgdMemory::kAveraged}},
          {"power_sgd", {.start = 0, .wire = WireFormat::kInt8B32}},
          {"batched_power_sgd_rank2", {.start = 0}},
          {"batched_power_sgd", {.start = 0, .alternate = true}}};
}

TEST(PowerSgdState, GoesOnWithTheSameBits) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  for (const auto& [name, options] : kinds()) {
    testing::run_ranks(3, [&](int64_t rank, const Group& group) {
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
      for (const int64_t steps : {2, 3}) {  // If steps alternate, state with either factor.
        const auto hook = make_hook(name, group, options);
        for (int64_t step = 0; step < steps; ++step) average_step(*hook, parameters, gradients(rank, step));
        const auto resumed = make_hook(name, group, options);
        resumed->load_state({.world_size = 3, .states = {hook->state(named(parameters))}, .first = {}},
                            named(parameters));
        EXPECT_EQ(resumed->payload_bytes_sent(), hook->payload_bytes_sent());
        for (int64_t step = steps; step < steps + 3; ++step) {
          EXPECT_TRUE(at::equal(average_step(*resumed, parameters, gradients(rank, step)),
                                average_step(*hook, parameters, gradients(rank, step))))
              << name << " step " << step;
        }
      }
    });
  }
}

// One hook may be measured with buckets of several sizes. A new parameter often has the address of a destroyed one.
TEST(PowerSgdState, IsOfParametersThatAreGoneNoMore) {
  for (const std::string name : {"power_sgd", "batched_power_sgd"}) {
    testing::run_ranks(2, [&](int64_t /*rank*/, const Group& group) {
      const auto hook = make_hook(name, group, {.start = 0});
      for (const int64_t side : {32, 64, 48, 80, 56, 32}) {
        const at::Tensor gradients = at::ones({side * side});
        // These gradients have rank 1, so that the mean is exact unless a wrong residual is added.
        EXPECT_TRUE(at::allclose(average_step(*hook, {at::zeros({side, side})}, gradients), gradients)) << side;
      }
    });
  }
}

// A training that resumes before its hook compresses, or saves before its first step, keeps the loaded state.
TEST(PowerSgdState, LeavesWhatNoBucketHasTakenUp) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  for (const auto& [name, options] : kinds()) {
    testing::run_ranks(2, [&](int64_t rank, const Group& group) {
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
      const auto hook = make_hook(name, group, options);
      for (int64_t step = 0; step < 2; ++step) average_step(*hook, parameters, gradients(rank, step));
      const HookState left = hook->state(named(parameters));
      const auto resumed = make_hook(name, group, options);
      resumed->load_state({.world_size = 2, .states = {left}, .first = {}}, named(parameters));
      const HookState again = resumed->state(named(parameters));
      EXPECT_EQ(again.size(), left.size()) << name;
      for (const auto& [key, value] : left) {
        ASSERT_THAT(again, Contains(Key(key))) << name;
        EXPECT_TRUE(at::equal(again.at(key), value)) << name << " " << key;
      }
    });
  }
}

// Three ranks save state that two or four ranks load. Later means lack the sum of the residuals divided by the number
// of ranks.
TEST(PowerSgdState, IsSharedOutInAnotherWorld) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  const PowerSgdRun run{
      .hook = "power_sgd_rank2", .options = {.start = 0}, .shapes = {{60, 40}, {30, 50}}, .world_size = 3, .steps = 3};
  const PowerSgdResult left = run_power_sgd(run, gradients);
  at::Tensor lacking = at::zeros({60 * 40});
  for (const HookState& state : left.states) lacking += state.at("residual.0") / 3;
  for (const int64_t world_size : {2, 4}) {
    std::vector<HookState> states(world_size);
    testing::run_ranks(world_size, [&](int64_t rank, const Group& group) {
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
      FormerRanks former{.world_size = 3, .states = {}, .first = {}};
      for (int64_t i = rank; i < 3; i += world_size) former.states.push_back(left.states[i]);
      if (former.states.empty()) former.first = left.states[0];
      const auto hook = make_hook(run.hook, group, run.options);
      hook->load_state(former, named(parameters));
      average_step(*hook, parameters, at::zeros({kOfTwoMatrices}));
      states[rank] = hook->state(named(parameters));
    });
    for (const HookState& state : states) EXPECT_TRUE(at::equal(state.at("q.0"), states[0].at("q.0")));
    // A step with zero gradients returns a part of the residual and keeps the rest.
    at::Tensor kept = at::zeros({60 * 40});
    for (const HookState& state : states) kept += state.at("residual.0") / static_cast<double>(world_size);
    const at::Tensor given = lacking - kept;
    const at::Tensor singular = at::linalg_svdvals(given.view({60, 40}));
    EXPECT_LT(singular[2].item<float>(), 1e-5 * singular[0].item<float>()) << "it was no matrix of two columns";
    EXPECT_GT(singular[0].item<float>(), 0.1) << "nothing was given";
    EXPECT_LT(kept.norm().item<float>(), lacking.norm().item<float>());
  }
}

TEST(PowerSgdState, RefusesWhatDoesNotFit) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
    const auto hook = make_hook("power_sgd_rank2", group, {.start = 0});
    average_step(*hook, parameters, at::ones({kOfTwoMatrices}));
    const HookState good = hook->state(named(parameters));
    const auto complaint = [&](const std::string& name, const std::optional<at::Tensor>& value) {
      HookState state = good;
      state.erase(name);
      if (value) state[name] = *value;
      const auto other = make_hook("power_sgd_rank2", group, {.start = 0});
      return testing::error_message<CorruptInputError>(
          [&] { other->load_state({.world_size = 1, .states = {state}, .first = {}}, named(parameters)); });
    };
    EXPECT_THAT(complaint("rank", int_tensor(3)), HasSubstr("has rank 3, but the hook has rank 2"));
    EXPECT_THAT(complaint("draws", std::nullopt), HasSubstr("'draws'"));
    EXPECT_THAT(complaint("residual.0", at::zeros({7})), HasSubstr("'residual.0'"));
    EXPECT_THAT(complaint("q.0", at::zeros({40})), HasSubstr("'q.0'"));
    EXPECT_THAT(complaint("q.0", at::zeros({41, 2})), HasSubstr("factor of '0'"));
  });
}

// State of another way to step or another kind of matrix is rejected. State of older versions, which lacks these
// entries, is accepted.
TEST(PowerSgdState, RefusesThatOfAnotherKind) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
    const auto left_by = [&](const std::string& name, bool alternates) {
      const auto hook = make_hook(name, group, {.rank = 2, .start = 0, .alternate = alternates});
      for (int step = 0; step < 2; ++step) average_step(*hook, parameters, at::ones({kOfTwoMatrices}));
      return hook->state(named(parameters));
    };
    const auto complaint = [&](const HookState& state, const std::string& name, bool alternates) {
      const auto hook = make_hook(name, group, {.rank = 2, .start = 0, .alternate = alternates});
      return testing::error_message<CorruptInputError>(
          [&] { hook->load_state({.world_size = 1, .states = {state}, .first = {}}, named(parameters)); });
    };
    EXPECT_THAT(complaint(left_by("power_sgd", true), "power_sgd", false),
                HasSubstr("the hook's state has alternates 1, but the hook has 0"));
    EXPECT_THAT(complaint(left_by("power_sgd", false), "power_sgd", true),
                HasSubstr("the hook's state has alternates 0, but the hook has 1"));
    EXPECT_THAT(complaint(left_by("power_sgd", false), "batched_power_sgd", false),
                HasSubstr("the hook's state has batched 0, but the hook has 1"));
    const auto without_kind = [&](bool alternates) {
      HookState state = left_by("power_sgd", alternates);
      state.erase("alternates");
      state.erase("batched");
      return state;
    };
    EXPECT_THAT(complaint(without_kind(true), "power_sgd", false),
                HasSubstr("'p.0' belongs to a hook with power_sgd_alternate, but this hook does not alternate"));
    const HookState former = without_kind(false);
    const auto hook = make_hook("power_sgd", group, {.rank = 2, .start = 0});
    hook->load_state({.world_size = 1, .states = {former}, .first = {}}, named(parameters));
    EXPECT_TRUE(at::equal(hook->state(named(parameters)).at("q.0"), former.at("q.0")));
  });
}

// One bucket with both parameters, then two, then the other order: each time as if it had been so from the beginning.
TEST(PowerSgdState, GoesWithItsParameters) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  testing::run_ranks(2, [&](int64_t rank, const Group& group) {
    const at::Tensor a = at::zeros({60, 40});
    const at::Tensor b = at::zeros({30, 50});
    const auto one = make_hook("power_sgd_rank2", group, {.start = 0});
    const auto rebuilt = make_hook("power_sgd_rank2", group, {.start = 0});
    const auto both = [&](int64_t step) { return gradients(rank, step); };
    const auto of_a = [&](int64_t step) { return both(step).narrow(0, 0, a.numel()); };
    const auto of_b = [&](int64_t step) { return both(step).narrow(0, a.numel(), b.numel()); };
    EXPECT_TRUE(at::equal(average_step(*rebuilt, {a, b}, both(0)), average_step(*one, {a, b}, both(0))));
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    auto first = make_parameters_bucket({b}, {of_b(1)}, 0, 2);
    futures.push_back(rebuilt->runHook(first));
    auto second = make_parameters_bucket({a}, {of_a(1)}, 1, 2);
    futures.push_back(rebuilt->runHook(second));
    for (const auto& future : futures) future->waitAndThrow();
    const at::Tensor expected = average_step(*one, {a, b}, both(1));
    EXPECT_TRUE(at::equal(futures[1]->value().toTensor(), expected.narrow(0, 0, a.numel())));
    EXPECT_TRUE(at::equal(futures[0]->value().toTensor(), expected.narrow(0, a.numel(), b.numel())));
    const at::Tensor swapped = average_step(*rebuilt, {b, a}, at::cat({of_b(2), of_a(2)}));
    const at::Tensor again = average_step(*one, {a, b}, both(2));
    EXPECT_TRUE(at::equal(swapped.narrow(0, b.numel(), a.numel()), again.narrow(0, 0, a.numel())));
    EXPECT_EQ(rebuilt->state({{"a", a}, {"b", b}}).at("draws").item<int64_t>(), 1);
  });
}

// Two hooks of one group, each with several buckets in flight.
TEST(PowerSgdState, IsAHooksOwn) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  std::vector<std::vector<at::Tensor>> means(2);
  testing::run_ranks(2, [&](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
    const auto alone = make_hook("power_sgd_rank2", group, {.start = 0});
    const at::Tensor expected = average_step(*alone, parameters, gradients(rank, 0));
    const auto one = make_hook("power_sgd_rank2", group, {.start = 0});
    const auto other = make_hook("power_sgd_rank2", group, {.start = 0});
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (size_t index = 0; index < 8; ++index) {
      for (const auto& hook : {one.get(), other.get()}) {
        auto bucket = make_parameters_bucket(
            {at::zeros({60, 40}), at::zeros({30, 50})},
            {gradients(rank, 0).narrow(0, 0, 2400), gradients(rank, 0).narrow(0, 2400, 1500)}, index, 8);
        futures.push_back(hook->runHook(bucket));
      }
    }
    for (const auto& future : futures) future->waitAndThrow();
    EXPECT_TRUE(at::equal(futures[0]->value().toTensor(), expected));
    for (size_t i = 0; i < futures.size(); i += 2) {
      EXPECT_TRUE(at::equal(futures[i]->value().toTensor(), futures[i + 1]->value().toTensor()));
      means[rank].push_back(futures[i]->value().toTensor());
    }
  });
  for (size_t i = 0; i < means[0].size(); ++i) EXPECT_TRUE(at::equal(means[0][i], means[1][i]));
}

// A compressed step that begins while the last one is in flight. Rank 1 begins then.
TEST(PowerSgdState, IsOfOneStepAfterTheOther) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  std::promise<void> in_flight;
  testing::run_ranks(2, [&](int64_t rank, const Group& group) {
    const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
    const auto alone = make_hook("power_sgd_rank2", group, {.start = 0});
    std::vector<at::Tensor> expected;
    for (int64_t step = 0; step < 2; ++step) {
      expected.push_back(average_step(*alone, parameters, gradients(rank, step)));
    }
    const auto hook = make_hook("power_sgd_rank2", group, {.start = 0});
    if (rank == 1) in_flight.get_future().wait();
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int64_t step = 0; step < 2; ++step) {
      const at::Tensor gradient = gradients(rank, step);
      auto bucket =
          make_parameters_bucket(parameters, {gradient.narrow(0, 0, 2400), gradient.narrow(0, 2400, 1500)}, 0, 1);
      futures.push_back(hook->runHook(bucket));
      if (rank == 0 && step == 0) in_flight.set_value();
    }
    for (size_t step = 0; step < 2; ++step) {
      futures[step]->waitAndThrow();
      EXPECT_TRUE(at::equal(futures[step]->value().toTensor(), expected[step])) << "step " << step;
    }
  });
}

// Hooks with residuals.
std::vector<std::pair<std::string, HookOptions>> hooks_with_residuals() {
  return {{"power_sgd_rank2", {.process_group = {}, .power_sgd = {.start = 0}}},
          {"batched_power_sgd", {.process_group = {}, .power_sgd = {.start = 0}}},
          {"int8", {.process_group = {}, .wire = {.error_feedback = true, .node_size = 1}}},
          {"var4", {.process_group = {}, .wire = {.error_feedback = true, .node_size = 1}}},
          {"auto",
           {.process_group = {}, .wire = {.error_feedback = true, .node_size = 1, .link_gbit = 1e-4, .link_us = 50}}}};
}

// The loss is scaled by powers of two that change between steps. Except for the scale, the means are the same.
TEST(RescaleState, KeepsResidualsInTheUnitsOfGradients) {
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  const std::vector<double> scales{1, 0.5, 2, 2};
  for (const auto& [name, usual] : hooks_with_residuals()) {
    testing::run_ranks(2, [&](int64_t rank, const Group& group) {
      HookOptions options = usual;
      options.process_group = group;
      const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
      const auto plain = create_comm_hook(name, options);
      const auto scaled = create_comm_hook(name, options);
      for (size_t step = 0; step < scales.size(); ++step) {
        if (step > 0 && scales[step] != scales[step - 1]) scaled->rescale_state(scales[step] / scales[step - 1]);
        const at::Tensor gradient = gradients(rank, static_cast<int64_t>(step));
        const at::Tensor expected = average_step(*plain, parameters, gradient);
        EXPECT_TRUE(at::equal(average_step(*scaled, parameters, gradient * scales[step]), expected * scales[step]))
            << name << " step " << step;
      }
    });
  }
}

// The residuals among a state's tensors, as copies: the hook changes its own later.
HookState residuals_in(const HookState& state) {
  HookState residuals;
  for (const auto& [name, tensor] : state) {
    if (tensor.is_floating_point() &&
        (name.find("residual.") != std::string::npos || name.find("shared.") != std::string::npos)) {
      residuals.emplace(name, tensor.clone());
    }
  }
  return residuals;
}

// In a world of another size the residuals wait for their first bucket.
TEST(RescaleState, AlsoRescalesWhatNoBucketHasTakenUp) {
  constexpr int64_t kFormerRanks = 3;
  const auto gradients = random_gradients(kOfTwoMatrices, at::kFloat);
  const std::vector<at::Tensor> parameters{at::zeros({60, 40}), at::zeros({30, 50})};
  for (const auto& [name, usual] : hooks_with_residuals()) {
    const auto make = [name = name, usual = usual](const Group& group) {
      HookOptions options = usual;
      options.process_group = group;
      return create_comm_hook(name, options);
    };
    std::vector<HookState> states(kFormerRanks);
    testing::run_ranks(kFormerRanks, [&](int64_t rank, const Group& group) {
      const auto hook = make(group);
      average_step(*hook, parameters, gradients(rank, 0));
      states[static_cast<size_t>(rank)] = hook->state(named(parameters));
      testing::wait_for_ranks(group);
    });
    for (const int64_t world_size : {1, 2, 3, 4}) {
      testing::run_ranks(world_size, [&, name = name](int64_t rank, const Group& group) {
        const auto hook = make(group);
        FormerRanks saved{.world_size = kFormerRanks, .states = {}, .first = states[0]};
        for (int64_t former = rank; former < kFormerRanks; former += world_size) {
          saved.states.push_back(states[static_cast<size_t>(former)]);
        }
        hook->load_state(saved, named(parameters));
        const HookState before = residuals_in(hook->state(named(parameters)));
        // On one rank auto averages nothing, so no hook takes the residuals.
        const bool has_none = rank >= kFormerRanks || (name == "auto" && world_size == 1);
        EXPECT_EQ(before.empty(), has_none) << name << ", rank " << rank << " of " << world_size;
        hook->rescale_state(0.5);
        const HookState after = residuals_in(hook->state(named(parameters)));
        for (const auto& [key, residual] : before) {
          EXPECT_TRUE(at::equal(after.at(key), residual * 0.5)) << name << " " << key << " of " << world_size;
        }
      });
    }
  }
}

// The measured link determines how formats round, so a resumed training keeps it.
TEST(PowerSgdState, GoesOnWithTheLinkThatWasMeasured) {
  testing::run_ranks(3, [](int64_t, const Group& group) {
    const auto make = [&](const WireOptions& wire) {
      return create_comm_hook("power_sgd", {.process_group = group, .wire = wire, .power_sgd = {.start = 0}});
    };
    const auto hook = make({.node_size = 1});
    HookState state = hook->state({});
    ASSERT_TRUE(state.contains("link"));
    state["link"] = at::tensor({1.0, 2.0}, at::kDouble);
    const FormerRanks saved{.world_size = 3, .states = {state}, .first = state};
    hook->load_state(saved, {});
    EXPECT_TRUE(at::equal(hook->state({}).at("link"), state["link"]));
    const auto given = make({.node_size = 1, .link_gbit = 10, .link_us = 50});
    given->load_state(saved, {});
    EXPECT_FALSE(at::equal(given->state({}).at("link"), state["link"])) << "what is given is taken";
  });
}

TEST(PowerSgdState, KeepsNoResidualWithoutErrorFeedback) {
  const PowerSgdRun run{.options = {.rank = 1, .start = 0, .error_feedback = false}, .shapes = {{60, 40}}, .steps = 1};
  const PowerSgdResult result = run_power_sgd(run, random_gradients(2400, at::kFloat));
  EXPECT_THAT(result.states[0], Not(Contains(Key("residual.0"))));
  EXPECT_THAT(result.states[0], Contains(Key("q.0")));
}

}  // namespace
}  // namespace narrowcast::hooks

#include "hooks/table/auto_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/levels.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kAutoNumel = 100'000;

// The link and the costs of exchanges are given, so nothing is measured.
WireOptions wire_of(int64_t node_size) { return {.node_size = node_size, .link_gbit = 10, .link_us = 50}; }

// Makes the hook of that name the fastest.
AutoMeasures favouring(const std::string& favourite) {
  return {.cost = [=](const std::string& name) { return ExchangeCost{0, name == favourite ? 1e-9 : 1e-8}; }};
}

at::Tensor auto_gradients(int64_t rank, int64_t numel = kAutoNumel) {
  return at::sin(at::arange(numel, at::kDouble) * static_cast<double>(rank + 1)).to(at::kFloat) * 1e-2;
}

// Bound of the difference between the mean of such gradients and the exact mean, per element.
at::Tensor auto_bound(const NodeLayout& layout, const WireOptions& wire) {
  at::Tensor bound = at::zeros({kAutoNumel}, at::kDouble);
  for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
    bound += hook_row("auto").error_terms({auto_gradients(rank)}, layout, {nullptr, wire}).sum();
  }
  return bound;
}

at::Tensor exact_auto_mean(int64_t world_size) {
  at::Tensor sum = at::zeros({kAutoNumel}, at::kDouble);
  for (int64_t rank = 0; rank < world_size; ++rank) sum += auto_gradients(rank).to(at::kDouble);
  return sum / static_cast<double>(world_size);
}

using WorldAndNodeSize = std::tuple<int64_t, int64_t>;
class AutoHookOver : public ::testing::TestWithParam<WorldAndNodeSize> {};

TEST_P(AutoHookOver, AveragesWhicheverHookItTakes) {
  const auto [world_size, node_size] = GetParam();
  WireOptions wire = wire_of(node_size);
  wire.auto_bits = 4;
  const NodeLayout layout = NodeLayout::of_size(world_size, node_size);
  const at::Tensor bound = auto_bound(layout, wire);
  for (const AutoCandidate& candidate : auto_candidates(wire, layout)) {
    SCOPED_TRACE(candidate.name);
    std::vector<at::Tensor> means(world_size);
    run_ranks(world_size, [&](int64_t rank, const Group& group) {
      AutoHook hook(hook_row("auto"), {group, wire}, favouring(candidate.name));
      EXPECT_EQ(hook.hook_for(kAutoNumel), candidate.name);
      means[rank] = run_on(hook, make_bucket(auto_gradients(rank)));
      const auto alone = create_comm_hook(candidate.name, candidate_options(candidate.name, {group, wire}));
      EXPECT_TRUE(at::equal(run_on(*alone, make_bucket(auto_gradients(rank))), means[rank]));
      EXPECT_EQ(hook.payload_bytes_sent(), alone->payload_bytes_sent());
    });
    EXPECT_TRUE(((means[0].to(at::kDouble) - exact_auto_mean(world_size)).abs() <= bound).all().item<bool>());
    for (const at::Tensor& mean : means) EXPECT_TRUE(at::equal(mean, means[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, AutoHookOver,
                         ::testing::Values(std::tuple(1, 1), std::tuple(2, 1), std::tuple(2, 2), std::tuple(3, 1),
                                           std::tuple(3, 2), std::tuple(4, 2), std::tuple(5, 1), std::tuple(5, 4),
                                           std::tuple(8, 4)));

TEST(AutoHook, GivesEachBucketToTheHookForItsSize) {
  const AutoMeasures measures{.cost = [](const std::string& name) {
    return name == "allreduce" ? ExchangeCost{0, 1e-6} : ExchangeCost{name == "int8" ? 1e-3 : 1, 1e-9};
  }};
  run_ranks(2, [&](int64_t rank, const Group& group) {
    AutoHook hook(hook_row("auto"), {group, wire_of(1)}, measures);
    EXPECT_EQ(hook.hook_for(100), "allreduce");
    EXPECT_EQ(hook.hook_for(kAutoNumel), "int8");
    EXPECT_EQ(hook.predicted_seconds(100), measures.cost("allreduce").of(100));
    EXPECT_EQ(hook.predicted_seconds(kAutoNumel), measures.cost("int8").of(kAutoNumel));
    EXPECT_THAT(hook.decision(), HasSubstr("int8 from"));
    EXPECT_THAT(hook.decision(), HasSubstr("allreduce below"));
    EXPECT_THAT(hook.decision(), HasSubstr("link 10.0 Gbit/s and 50.0 us between nodes, given"));
    for (int64_t step = 0; step < 3; ++step) {
      const auto large = make_bucket(auto_gradients(rank), 0, 2);
      const auto small = make_bucket(at::full({100}, static_cast<float>(rank)), 1, 2);
      run_on(hook, large);
      EXPECT_TRUE(at::equal(run_on(hook, small), at::full({100}, 0.5F))) << "not rounded";
    }
    const auto sent = static_cast<double>(encoded_size(kAutoNumel, WireFormat::kInt8B128) + 400);
    EXPECT_EQ(hook.compression(), 4 * static_cast<double>(kAutoNumel + 100) / sent);
  });
}

TEST(AutoHook, MeasuresItsCandidatesAlikeOnAllRanks) {
  std::vector<std::string> decisions(2);
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook("auto", {group, {.node_size = 1}});
    decisions[rank] = hook->decision();
    run_on(*hook, make_bucket(auto_gradients(rank)));
  });
  EXPECT_EQ(decisions[1], decisions[0]);
  EXPECT_THAT(decisions[0], HasSubstr("measured"));
}

TEST(AutoHook, AddsUpTheErrorsOfCandidatesWithoutFeedback) {
  WireOptions wire = wire_of(1);
  wire.error_feedback = true;
  const NodeLayout layout = NodeLayout::flat(2);
  const ErrorTerms terms = hook_row("auto").error_terms({auto_gradients(0)}, layout, {nullptr, wire});
  const ErrorTerms cast = hook_row("bf16_compress").error_terms({auto_gradients(0)}, layout, {});
  EXPECT_TRUE((terms.float32 >= cast.float32 + cast.first_hop).all().item<bool>());
}

TEST(AutoHook, HasNothingToSendAlone) {
  run_ranks(1, [](int64_t, const Group& group) {
    AutoHook hook(hook_row("auto"), {group});
    EXPECT_EQ(hook.decision(), "allreduce: one rank has nothing to send");
    EXPECT_TRUE(at::equal(run_on(hook, make_bucket(auto_gradients(0))), auto_gradients(0)));
    EXPECT_EQ(hook.payload_bytes_sent(), 0);
  });
}

// The group has Gloo's backend for CUDA, which does not run: nothing is sent.
TEST(AutoHook, MeasuresNothingOnGpusWithoutNccl) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto gpus = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    gpus->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
    const WireOptions kRefused[] = {{.stochastic_rounding_seed = 1},
                                    {.error_feedback = true},
                                    {.exempt_one_dimensional = true},
                                    {.levels = Levels::kTwo},
                                    {.node_size = 2},
                                    {.link_gbit = 10},
                                    {.link_us = 50},
                                    {.auto_bits = 4}};
    for (const WireOptions& wire : kRefused) {
      EXPECT_THAT(testing::error_message<c10::ValueError>([&] {
                    AutoHook(hook_row("auto"), {gpus, wire});
                  }),
                  HasSubstr(" has no effect on GPUs without NCCL, where the hook auto always uses allreduce"));
    }
    for (const WireOptions& wire : {WireOptions{}, WireOptions{.levels = Levels::kOne}, WireOptions{.node_size = 1}}) {
      EXPECT_EQ(AutoHook(hook_row("auto"), {gpus, wire}).decision(), kUnmeasured);
    }
  });
}

// Steps of parameters with error feedback.
class Training {
 public:
  Training(AutoHook& hook, int64_t rank) : hook_(hook), rank_(rank) {}

  std::vector<at::Tensor> steps(int64_t first, int64_t last) {
    std::vector<at::Tensor> means;
    for (int64_t step = first; step <= last; ++step) {
      for (size_t index : {0, 1}) {
        const at::Tensor gradient = auto_gradients(rank_ + 7 * step, kAutoNumel / (index + 1)).view({-1, 10});
        means.push_back(run_on(hook_, make_parameters_bucket({parameters_[index].tensor}, {gradient}, index, 2)));
      }
    }
    return means;
  }

  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  AutoHook& hook_;
  const int64_t rank_;
  const std::vector<NamedParameter> parameters_ = {{"a", at::zeros({kAutoNumel / 10, 10})},
                                                   {"b", at::zeros({kAutoNumel / 20, 10})}};
};

TEST(AutoHook, GoesOnWithTheSameBitsAndDecisions) {
  const AutoMeasures before{.cost = [](const std::string& name) {
    return name == "int8" ? ExchangeCost{60e-6, 1e-9} : ExchangeCost{0, name == "allreduce" ? 2e-9 : 4e-9};
  }};
  WireOptions wire = wire_of(1);
  wire.error_feedback = true;
  wire.stochastic_rounding_seed = 3;
  run_ranks(3, [&](int64_t rank, const Group& group) {
    AutoHook hook(hook_row("auto"), {group, wire}, before);
    EXPECT_EQ(hook.hook_for(kAutoNumel), "int8");
    EXPECT_EQ(hook.hook_for(kAutoNumel / 2), "allreduce");
    Training training(hook, rank);
    training.steps(1, 2);
    HookState state = hook.state(training.parameters());
    for (auto& [name, tensor] : state) tensor = tensor.clone();  // The hook changes its residuals later.
    const auto expected = training.steps(3, 4);

    AutoHook resumed(hook_row("auto"), {group, wire}, favouring("bf16_compress"));
    Training resumed_training(resumed, rank);
    EXPECT_EQ(resumed.hook_for(kAutoNumel), "bf16_compress");
    resumed.load_state({.world_size = 3, .states = {state}, .first = state}, resumed_training.parameters());
    EXPECT_EQ(resumed.hook_for(kAutoNumel), "int8");
    const auto means = resumed_training.steps(3, 4);
    for (size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(at::equal(means[i], expected[i])) << i;
    EXPECT_EQ(resumed.payload_bytes_sent(), hook.payload_bytes_sent());
  });
}

TEST(AutoHook, DecidesAnewInAnotherWorldOrWithAnotherLink) {
  run_ranks(2, [&](int64_t, const Group& group) {
    const AutoHook former(hook_row("auto"), {group, wire_of(1)}, favouring("int8"));
    const HookState state = former.state({});
    AutoHook hook(hook_row("auto"), {group, wire_of(1)}, favouring("allreduce"));
    hook.load_state({.world_size = 3, .states = {state}, .first = state}, {});
    EXPECT_EQ(hook.hook_for(kAutoNumel), "allreduce");
    WireOptions other = wire_of(1);
    other.link_gbit = 20;
    AutoHook elsewhere(hook_row("auto"), {group, other}, favouring("allreduce"));
    elsewhere.load_state({.world_size = 2, .states = {state}, .first = state}, {});
    EXPECT_EQ(elsewhere.hook_for(kAutoNumel), "allreduce");
    HookState bad = state;
    bad["int8.cost"] = at::tensor({1.0, -1.0, 0.0, 0.0}, at::kDouble);
    EXPECT_THAT(testing::error_message<CorruptInputError>(
                    [&] { hook.load_state({.world_size = 2, .states = {bad}, .first = bad}, {}); }),
                HasSubstr("'int8.cost' is not 4 numbers"));
  });
}

}  // namespace
}  // namespace narrowcast::hooks

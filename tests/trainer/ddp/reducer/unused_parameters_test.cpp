// Parameters that some steps, or some ranks, leave unused because forward takes another path. Gradients are compared
// with plain averages, and every hook with itself on zeros in place of unused gradients.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;

constexpr int64_t kChangingSteps = 8;

// The hook `auto` measures how long its candidates take to encode. On so slow a network it makes the same choice for
// two models: the four bits of an element take 40 us, and are encoded in nanoseconds.
constexpr double kSlowGbit = 0.0001;

// Whether `rank` uses the optional layer in `step`: in turn even ranks, no rank, every rank and no rank use it. So the
// set changes from step to step on each rank, between the ranks, and by the graph of forward alone.
bool takes_path(int64_t step, int64_t rank) {
  switch (step % 4) {
    case 0:
      return rank % 2 == 0;
    case 2:
      return true;
    default:
      return false;
  }
}

bool any_rank_takes_path(int64_t step) { return takes_path(step, 0); }

// Gradients of every rank for parameter `index`; undefined if the rank leaves it unused.
std::vector<at::Tensor> gradients_with_paths(SmallNet& net, int64_t step, int64_t world_size, size_t index) {
  std::vector<at::Tensor> by_rank;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const Sample sample = sample_of(step, rank);
    const at::Tensor loss = loss_of(net->forward(sample.x, takes_path(step, rank)), sample);
    by_rank.push_back(gradients_of(loss, net->parameters())[index]);
  }
  return by_rank;
}

std::vector<Mode> modes_that_find_unused_parameters() {
  std::vector<Mode> modes;
  for (const Mode& mode : all_modes()) {
    if (mode.options.find_unused_parameters()) modes.push_back(mode);
  }
  return modes;
}

class ChangingPathTest : public ::testing::TestWithParam<std::tuple<int64_t, Mode>> {};

TEST_P(ChangingPathTest, GradientsAreMeansAndNoneWhereNoRankUsedTheParameter) {
  const auto& [world_size, mode] = GetParam();
  run_ranks(world_size, [&options = mode.options](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, options);
    SmallNet net = ddp.module();
    for (int64_t step = 0; step < kChangingSteps; ++step) {
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(loss_of(ddp.forward(sample.x, takes_path(step, rank)), sample));
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(
            is_mean_over_ranks(net->parameters()[i].grad(), gradients_with_paths(net, step, group->getSize(), i)))
            << "step " << step << ", parameter " << i << ", rank " << rank;
      }
      EXPECT_EQ(net->optional->weight.grad().defined(), any_rank_takes_path(step)) << "step " << step;
      descend(net->parameters(), 0.1);
    }
    EXPECT_TRUE(same_on_all_ranks(group, net->parameters()));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ChangingPathTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(modes_that_find_unused_parameters())),
                         [](const auto& info) {
                           return "world_" + std::to_string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

// Without the optional layer its parameters get gradients that are exactly zero.
struct ZeroingNetImpl : SmallNetImpl {
  at::Tensor forward(const at::Tensor& x, bool with_optional) {
    const at::Tensor y = SmallNetImpl::forward(x, with_optional);
    return with_optional ? y : y + (optional->weight.sum() + optional->bias.sum()) * 0;
  }
};
TORCH_MODULE(ZeroingNet);

DdpOptions options_of_unused(const std::string& hook, bool with_feedback) {
  DdpOptions options = DdpOptions().hook(hook).find_unused_parameters(true).bucket_cap_mb(0.0005);
  if (hooks::takes_wire_options(hook)) {
    options.wire({.error_feedback = with_feedback, .node_size = 1});  // On one machine nothing would be sent.
  }
  if (hooks::hook_row(hook).chooses) {
    options.wire({.node_size = 1, .link_gbit = kSlowGbit, .link_us = 50, .auto_bits = hooks::kFewestAutoBits});
  }
  if (hooks::hook_row(hook).approximates()) {
    options.power_sgd({.rank = 1, .start = 2});
  }
  return options;
}

struct UnusedHookCase {
  std::string hook;
  bool feedback;
};

std::vector<UnusedHookCase> unused_hook_cases() {
  std::vector<UnusedHookCase> cases;
  for (const std::string& hook : hooks::comm_hook_names()) {
    cases.push_back({hook, false});
    if (hooks::takes_wire_options(hook) && hooks::wire_format_of(hook).has_value()) cases.push_back({hook, true});
  }
  return cases;
}

class ChangingPathHookTest : public ::testing::TestWithParam<std::tuple<UnusedHookCase, int64_t>> {};

TEST_P(ChangingPathHookTest, GradientsAreThoseOfZerosForUnusedParameters) {
  const auto& [hook_case, world_size] = GetParam();
  for (const bool as_view : {false, true}) {
    run_ranks(world_size, [as_view, &options_case = hook_case](int64_t rank, const ProcessGroupPtr& group) {
      const DdpOptions options =
          options_of_unused(options_case.hook, options_case.feedback).gradient_as_bucket_view(as_view);
      DistributedDataParallel changing(SmallNet(), group, options);
      DistributedDataParallel zeroing(ZeroingNet(), group, options);
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < changing.module()->parameters().size(); ++i) {
        zeroing.module()->parameters()[i].copy_(changing.module()->parameters()[i]);
      }
      const at::AutoGradMode grad(true);
      for (int64_t step = 0; step < kChangingSteps; ++step) {
        const Sample sample = sample_of(step, rank);
        changing.zero_grad();
        zeroing.zero_grad();
        changing.backward(loss_of(changing.forward(sample.x, takes_path(step, rank)), sample));
        zeroing.backward(loss_of(zeroing.forward(sample.x, takes_path(step, rank)), sample));
        const std::vector<at::Tensor> actual = gradients_in(changing.module()->parameters());
        const std::vector<at::Tensor> expected = gradients_in(zeroing.module()->parameters());
        for (size_t i = 0; i < actual.size(); ++i) {
          const bool is_optional = i >= 4;
          ASSERT_EQ(actual[i].defined(), !is_optional || any_rank_takes_path(step)) << "step " << step << ", " << i;
          if (actual[i].defined()) {
            EXPECT_TRUE(at::equal(actual[i], expected[i])) << "step " << step << ", parameter " << i;
          }
        }
      }
    });
  }
}

// Ranks agree on the used parameters before any hook runs.
INSTANTIATE_TEST_SUITE_P(Hooks, ChangingPathHookTest,
                         ::testing::ValuesIn(test::in_turn(unused_hook_cases(), std::vector<int64_t>{2, 4, 1})),
                         [](const auto& info) {
                           const UnusedHookCase& hook_case = std::get<0>(info.param);
                           return "world_" + std::to_string(std::get<1>(info.param)) + "_" + hook_case.hook +
                                  (hook_case.feedback ? "_with_feedback" : "");
                         });

// More than 2 MiB, so that there is a size to choose.
struct WideBranchingNetImpl : torch::nn::Module {
  WideBranchingNetImpl() {
    wide = register_module("wide", torch::nn::Linear(8, 66000));
    last = register_module("last", torch::nn::Linear(66000, 4));
    optional = register_module("optional", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool with_optional) {
    const at::Tensor y = last(wide(x));
    return with_optional ? optional(y) : y;
  }
  torch::nn::Linear wide{nullptr}, last{nullptr}, optional{nullptr};
};
TORCH_MODULE(WideBranchingNet);

TEST(ChangingPathChosenBuckets, GradientsAreMeansBeforeAndAfterTheChoice) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    const DdpOptions options = DdpOptions().find_unused_parameters(true).bucket_cap_mb(std::nullopt);
    DistributedDataParallel ddp(WideBranchingNet(), group, options);
    WideBranchingNet net = ddp.module();
    for (int64_t step = 0; step < kChangingSteps; ++step) {
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(loss_of(ddp.forward(sample.x, takes_path(step, rank)), sample));
      EXPECT_EQ(ddp.bucket_choice().has_value(), step >= 3);
      std::vector<at::Tensor> by_rank;
      for (int64_t other = 0; other < 2; ++other) {
        const Sample of_other = sample_of(step, other);
        const at::Tensor loss = loss_of(net->forward(of_other.x, takes_path(step, other)), of_other);
        by_rank.push_back(gradients_of(loss, {net->optional->weight})[0]);
      }
      EXPECT_TRUE(is_mean_over_ranks(net->optional->weight.grad(), by_rank)) << "step " << step;
      EXPECT_TRUE(same_on_all_ranks(group, {net->wide->weight.grad(), net->last->weight.grad()}));
    }
  });
}

}  // namespace
}  // namespace narrowcast

// Refusals, failures and the end of an optimizer that is sharded over all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "tests/trainer/ddp/sharding/sharded_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Group = ProcessGroupPtr;

// After the optimizer's end the hook averages all elements again.
TEST(OverAllRanksEnd, GradientsAreWholeAgain) {
  run_ranks(3, [&](int64_t /*rank*/, const Group& group) {
    NetTraining whole(group, ddp_options_of({"int8", {3, 1}}));
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    std::optional<ShardedOptimizer> sharded(std::in_place, *parts.adamw, parts.ddp.reducer());
    parts.backward(1);
    whole.backward(1);
    sharded.reset();
    compute_gradients(parts, 2, {});
    compute_gradients(whole, 2, {});
    for (size_t i = 0; i < whole.parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(parts.parameters()[i].grad(), whole.parameters()[i].grad())) << i;
    }
  });
}

// Names other nodes than exist.
class WrongNodesHook final : public hooks::CommHook {
 public:
  explicit WrongNodesHook(bool& averages_shards) : averages_shards_(averages_shards) {}
  std::string_view name() const override { return "wrong_nodes"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& /*bucket*/) override { return nullptr; }
  std::vector<int64_t> average_shards(std::optional<hooks::ShardRounding> rounding) override {
    averages_shards_ = rounding.has_value();
    return {0, 0, 0};
  }

 private:
  bool& averages_shards_;
};

TEST(OverAllRanksEnd, AHookOfARefusedOptimizerAveragesAllElements) {
  run_ranks(2, [&](int64_t /*rank*/, const Group& group) {
    bool averages_shards = false;
    NetTraining parts(group, DdpOptions().bucket_cap_mb(1));
    parts.ddp.register_comm_hook(std::make_unique<WrongNodesHook>(averages_shards));
    EXPECT_EQ(error_message<c10::ValueError>([&] { ShardedOptimizer(*parts.adamw, parts.ddp.reducer()); }),
              "hook wrong_nodes averages shards of 3 ranks, but there are 2");
    EXPECT_FALSE(averages_shards);
    EXPECT_FALSE(parts.ddp.reducer().averages_shards());
  });
}

class FailsOnRank1 final : public torch::optim::SGD {
 public:
  FailsOnRank1(const std::vector<at::Tensor>& parameters, bool fails)
      : SGD(parameters, torch::optim::SGDOptions(0.1)), fails_(fails) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    TORCH_CHECK_VALUE(!fails_, "no step today");
    return {};
  }

 private:
  const bool fails_;
};

void expect_failure_of_rank_1(int64_t rank, const std::function<void()>& step) {
  if (rank == 1) {
    EXPECT_EQ(error_message<c10::ValueError>(step), "no step today");
  } else {
    EXPECT_THAT(error_message<c10::DistBackendError>(step),
                AnyOf(HasSubstr("rank 1 could not take part in it"), HasSubstr("rank 1 of this node cancelled")));
  }
}

TEST(OverAllRanksErrors, AStepThatFailsOnOneRankFailsOnAll) {
  for (const int64_t node_size : {1, 2}) {
    run_ranks(4, [&](int64_t rank, const Group& group) {
      NetTraining parts(group, ddp_options_of({"int8", {4, node_size}}));
      FailsOnRank1 sgd(parts.parameters(), rank == 1);
      ShardedOptimizer sharded(sgd, parts.ddp.reducer());
      parts.backward(1);
      expect_failure_of_rank_1(rank, [&] { sharded.step(); });
    });
  }
}

// A training that clamps its parameters after the first step. Masters would undo that.
TEST(OverAllRanksErrors, ParametersThatSomebodyElseChangesAreNotedAndTaken) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer());
    const auto clamp = [&] {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : parts.parameters()) parameter.clamp_(-0.05, 0.05);
    };
    clamp();  // Before the first step nobody has to be told.
    sharded.take_parameters();
    parts.backward(1);
    sharded.step();
    clamp();
    sharded.take_parameters();
    EXPECT_EQ(sharded.largest_difference(), 0);
    sharded.zero_grad();
    parts.backward(2);
    sharded.step();
    // AdamW's steps are at most .02.
    for (const at::Tensor& parameter : parts.parameters())
      EXPECT_TRUE((parameter.abs() < 0.05 + 0.03).all().item<bool>());
    if (rank == 1) clamp();
    sharded.zero_grad();
    parts.backward(3);
    if (rank == 1) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.step(); }),
                  HasSubstr("parameter 0 [0, 3] was changed since the last step"));
    } else {
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }),
                  HasSubstr("rank 1 could not take part"));
    }
  });
}

// The failure comes when the parameters are needed.
TEST(OverAllRanksErrors, AnOverlappedStepThatFailsOnOneRankFailsOnAll) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    FailsOnRank1 sgd(parts.parameters(), rank == 1);
    ShardedOptimizer sharded(sgd, parts.ddp.reducer());
    parts.backward(1);
    sharded.start_step();
    expect_failure_of_rank_1(rank, [&] { sharded.wait_for(parts.ddp.module()->first->parameters()); });
  });
}

TEST(OverAllRanksErrors, WhatCannotBeShardedIsRefusedOnAllRanks) {
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const auto refusal = [&](const DdpOptions& options, const ShardOptions& shards, bool adds_parameter = false) {
      NetTraining parts(group, options);
      if (adds_parameter) {
        parts.adamw->param_groups()[0].params().push_back(at::zeros({3}).requires_grad_());
      }
      return error_message<c10::ValueError>([&] { ShardedOptimizer(*parts.adamw, parts.ddp.reducer(), shards); });
    };
    const DdpOptions int8 = ddp_options_of({"int8", {2, 1}});
    EXPECT_THAT(refusal(int8, ShardOptions().node_size(1)), HasSubstr("node_size: 1 has no effect"));
    EXPECT_THAT(refusal(ddp_options_of({"noop", {2}}), {}), HasSubstr("with hook noop they do not"));
    EXPECT_THAT(refusal(ddp_options_of({"var5", {2, 1}, Way::kErrorFeedback}), {}),
                HasSubstr("error_feedback in format var5"));
    EXPECT_THAT(refusal(DdpOptions()
                            .hook("quantized_allreduce")
                            .wire({.format = WireFormat::kTop2P15, .error_feedback = true, .node_size = 1}),
                        {}),
                HasSubstr("error_feedback in format top2_15"));
    EXPECT_THAT(refusal(int8, ShardOptions().parameter_format(WireFormat::kTop2P15)),
                HasSubstr("parameter_format: top2_15 would send most parameters only after many steps"));
    EXPECT_THAT(refusal(int8, {}, /*adds_parameter=*/true), HasSubstr("is none of those whose gradients are averaged"));
    EXPECT_THAT(refusal(int8, ShardOptions().parameter_format(rank == 0 ? WireFormat::kFp32 : WireFormat::kBf16)),
                HasSubstr("parameter_format differs between ranks"));
    NetTraining parts(group, int8);
    EXPECT_THAT(error_message<c10::ValueError>(
                    [&] { ShardedOptimizer(*parts.adamw, group, ShardOptions().parameter_format(WireFormat::kFp32)); }),
                HasSubstr("parameter_format: fp32 has no effect"));
  });
}

}  // namespace
}  // namespace narrowcast::testing

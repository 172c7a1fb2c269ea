// Ranks that do not run the same backward passes: all of them get an error that names the ranks that differ, before any
// mean is used.
#include "trainer/ddp/reducer/pass_check.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/ddp.h>
#include "tests/support/error_message.h"
#include "tests/support/in_turn.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::StartsWith;
using Ddp = DistributedDataParallel<SmallNet>;

// Buckets so small that there are several.
DdpOptions options_of(const std::string& hook) { return DdpOptions().hook(hook).bucket_cap_mb(kTinyMb); }

std::vector<Mode> hooks_to_misuse() {
  const hooks::WireOptions one_level{.levels = hooks::Levels::kOne, .link_gbit = 10, .link_us = 50};
  const hooks::WireOptions two_levels{.node_size = 2, .link_gbit = 10, .link_us = 50};
  return {{"none", options_of("none")},
          {"none_of_a_static_graph", options_of("none").static_graph(true)},
          {"none_with_unused_parameters", options_of("none").find_unused_parameters(true)},
          {"allreduce", options_of("allreduce")},
          {"bf16_compress", options_of("bf16_compress")},
          {"int8_in_one_level", options_of("int8").wire(one_level)},
          {"int8_in_two_levels", options_of("int8").wire(two_levels)},
          {"int8_of_a_static_graph", options_of("int8").wire(one_level).static_graph(true)},
          {"power_sgd", options_of("power_sgd").power_sgd({.start = 1})},
          {"auto", options_of("auto")}};
}

// The last rank differs in one step.
class Misuse : public ::testing::TestWithParam<std::tuple<Mode, int64_t>> {
 protected:
  int64_t odd_rank() const { return std::get<1>(GetParam()) - 1; }

  // Runs `body` on all ranks; all must end with the same error.
  void expect_error(const RankBody& body, const std::string& message) const {
    run_ranks(std::get<1>(GetParam()), [&](int64_t rank, const ProcessGroupPtr& group) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { body(rank, group); }), StartsWith(message)) << "rank " << rank;
    });
  }

  std::string differs(const std::string& first, const std::string& odd) const {
    return c10::str("call differs between ranks: rank 0 has ", first, ", rank ", odd_rank(), " has ", odd);
  }

  static Ddp make(const ProcessGroupPtr& group) { return {SmallNet(), group, std::get<0>(GetParam()).options}; }
};

void step_of(Ddp& ddp, int64_t rank) {
  const Sample sample = sample_of(0, rank);
  ddp.backward(loss_of(ddp.forward(sample.x), sample));
}

TEST_P(Misuse, BackwardPassesOfTwoModelsInAnotherOrder) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp one = make(group);
    Ddp two = make(group);
    step_of(one, rank);
    step_of(two, rank);
    const Sample sample = sample_of(1, rank);
    const at::Tensor loss_of_one = loss_of(one.forward(sample.x), sample);
    const at::Tensor loss_of_two = loss_of(two.forward(sample.x), sample);
    (rank == odd_rank() ? loss_of_two : loss_of_one).backward();
    (rank == odd_rank() ? loss_of_one : loss_of_two).backward();
  };
  expect_error(body, differs("backward pass 2 of model 1", "backward pass 2 of model 2"));
}

TEST_P(Misuse, APassWithoutExchangeOnOneRank) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp = make(group);
    step_of(ddp, rank);
    if (rank == odd_rank()) {
      const NoSyncGuard guard = ddp.no_sync();
      step_of(ddp, rank);
    }
    step_of(ddp, rank);
  };
  expect_error(body, differs("backward pass 2 of model 1", "backward pass 3 of model 1"));
}

TEST_P(Misuse, AStepThatIsLeftOutAfterItsForwardPass) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp = make(group);
    step_of(ddp, rank);
    if (rank == odd_rank()) ddp.forward(sample_of(1, rank).x);
    step_of(ddp, rank);
  };
  expect_error(body, differs("backward pass 2 of model 1", "backward pass 3 of model 1"));
}

TEST_P(Misuse, AStepThatIsLeftOutAfterAnExceptionInForward) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp = make(group);
    step_of(ddp, rank);
    if (rank == odd_rank()) {
      EXPECT_THROW(ddp.forward(at::zeros({1, 5})), c10::Error);  // 8 are expected.
    }
    step_of(ddp, rank);
  };
  expect_error(body, differs("backward pass 2 of model 1", "backward pass 3 of model 1"));
}

TEST_P(Misuse, ParametersThatAreConvertedOnAllRanks) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp = make(group);
    step_of(ddp, rank);
    ddp.module()->to(at::kDouble);
    ddp.forward(sample_of(1, rank).x.to(at::kDouble));
  };
  expect_error(body,
               "backward pass 2 of model 1 on rank 0: parameter 'first.weight' is Double [16, 8] on cpu, but was Float "
               "[16, 8] on cpu when DistributedDataParallel was made; ");
}

TEST_P(Misuse, ParametersThatAreConvertedOnOneRank) {
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp = make(group);
    step_of(ddp, rank);
    if (rank == odd_rank()) ddp.module()->second->to(at::kDouble);
    step_of(ddp, rank);
  };
  expect_error(body, c10::str("backward pass 2 of model 1 on rank ", odd_rank(),
                              ": parameter 'second.weight' is Double [4, 16] on cpu, but was Float [4, 16] on cpu"));
}

INSTANTIATE_TEST_SUITE_P(HooksAndWorlds, Misuse,
                         ::testing::ValuesIn(test::in_turn(hooks_to_misuse(), std::vector<int64_t>{2, 3, 4})),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
                         });

// Two layers, of two models. Their order in the forward pass decides the order of their gradients.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
  }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(TwoLayers);

// In one backward pass the buckets of two models come in turn, on one rank in another order.
TEST_P(Misuse, BucketsOfTwoModelsInAnotherOrder) {
  if (std::get<0>(GetParam()).options.hook() == "none") GTEST_SKIP() << "the Reducer asks nobody before it sends";
  if (std::get<0>(GetParam()).options.static_graph()) GTEST_SKIP() << "all buckets of a model come together";
  const auto body = [&](int64_t rank, const ProcessGroupPtr& group) {
    TwoLayers one;
    TwoLayers two;
    GradientReducer reducer_of_one(module_state(one.ptr()), group, std::get<0>(GetParam()).options);
    GradientReducer reducer_of_two(module_state(two.ptr()), group, std::get<0>(GetParam()).options);
    reducer_of_one.before_forward();
    reducer_of_two.before_forward();
    const at::Tensor x = sample_of(0, rank).x;
    at::Tensor y = (rank == odd_rank() ? two : one)->first(x);
    at::Tensor z = (rank == odd_rank() ? one : two)->first(x);
    if (rank == odd_rank()) std::swap(y, z);
    y = one->second(y);
    z = two->second(z);
    reducer_of_one.after_forward({});
    reducer_of_two.after_forward({});
    (y + z).sum().backward();
  };
  expect_error(body, differs("bucket 1 of backward pass 1 of model 2", "bucket 1 of backward pass 1 of model 1"));
}

// Nothing was sent, so a new wrapper can use the group.
TEST(PassCheckTest, TheGroupRemainsUsableWhereAllRanksConvert) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    for (const char* hook : {"none", "int8"}) {
      SmallNet net;
      Ddp before(net, group, DdpOptions().hook(hook));
      net->to(at::kDouble);
      EXPECT_THROW(before.forward(sample_of(0, rank).x.to(at::kDouble)), c10::ValueError);
      Ddp after(net, group, DdpOptions().hook(hook));
      after.backward(after.forward(sample_of(0, rank).x.to(at::kDouble)).sum());
      EXPECT_TRUE(same_on_all_ranks(group, gradients_in(net->parameters()))) << hook;
    }
  });
}

// Ranks that send nothing do not wait for others, and fail by themselves.
TEST(PassCheckTest, RanksThatDoNotAverageTogetherCompareNothing) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    Ddp ddp(SmallNet(), group, DdpOptions().hook("noop"));
    for (int64_t pass = 0; pass < 2 + rank; ++pass) step_of(ddp, rank);  // The first two rebuild buckets.
    wait_for_ranks(group);
    if (rank == 0) {
      ddp.module()->to(at::kDouble);
      EXPECT_THROW(ddp.forward(sample_of(0, rank).x), c10::ValueError);
    }
  });
}

// Any use that is the same on all ranks is allowed.
TEST(PassCheckTest, PassesThatAreAlikeAreAveraged) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    for (const char* hook : {"none", "int8"}) {
      Ddp one(SmallNet(), group, DdpOptions().hook(hook));
      Ddp two(SmallNet(), group, DdpOptions().hook(hook));
      {
        const NoSyncGuard guard = one.no_sync();
        step_of(one, rank);
      }
      one.forward(sample_of(1, rank).x);
      if (rank == 1) {
        const at::NoGradGuard no_grad;
        two.forward(sample_of(1, rank).x);
      }
      const Sample sample = sample_of(1, rank);
      for (int64_t step = 0; step < 3; ++step) {
        (loss_of(one.forward(sample.x), sample) + loss_of(two.forward(sample.x), sample)).backward();
      }
      EXPECT_TRUE(same_on_all_ranks(group, gradients_in(two.module()->parameters()))) << hook;
    }
  });
}

}  // namespace
}  // namespace narrowcast

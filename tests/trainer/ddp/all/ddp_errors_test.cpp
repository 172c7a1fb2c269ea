// Errors are thrown on every rank, with the same text, before training starts.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include <functional>
#include <string>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/version.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Matcher;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::Sequential;

using RankAction = std::function<void(int64_t rank, const ProcessGroupPtr& group)>;

void expect_value_error(int64_t world_size, const RankAction& action, const Matcher<std::string>& message) {
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    try {
      action(rank, group);
      ADD_FAILURE() << "rank " << rank << " threw nothing";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), message) << "rank " << rank;
    }
  });
}

RankAction wraps(const std::function<Sequential(int64_t rank)>& make_module) {
  return [=](int64_t rank, const ProcessGroupPtr& group) { DistributedDataParallel ddp(make_module(rank), group); };
}

RankAction uses(const std::function<DdpOptions(int64_t rank)>& make_options) {
  return [=](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, make_options(rank));
  };
}

TEST(DdpErrorsTest, NamesTheFirstParameterWhoseShapeDiffers) {
  expect_value_error(3, wraps([](int64_t rank) { return Sequential(Linear(2, 2), Linear(2, rank == 1 ? 5 : 4)); }),
                     Eq("parameter '1.weight' differs between ranks: "
                        "rank 0 has Float [4, 2] strides [2, 1] on cpu with gradient, "
                        "rank 1 has Float [5, 2] strides [2, 1] on cpu with gradient"));
}

TEST(DdpErrorsTest, NamesTheFirstParameterWhoseDtypeDiffers) {
  expect_value_error(2, wraps([](int64_t rank) {
                       Sequential net(Linear(2, 2));
                       net->to(rank == 0 ? at::kFloat : at::kDouble);
                       return net;
                     }),
                     AllOf(HasSubstr("parameter '0.weight'"), HasSubstr("Float"), HasSubstr("Double")));
}

TEST(DdpErrorsTest, NamesTheFirstParameterThatIsMissing) {
  expect_value_error(
      2, wraps([](int64_t rank) { return Sequential(Linear(2, 2), Linear(LinearOptions(2, 2).bias(rank == 0))); }),
      AllOf(HasSubstr("parameter '1.bias'"), HasSubstr("rank 1 does not have it")));
}

TEST(DdpErrorsTest, NamesTheFirstParameterThatIsFrozenOnOneRank) {
  expect_value_error(2, wraps([](int64_t rank) {
                       Sequential net(Linear(2, 2));
                       net->parameters()[1].requires_grad_(rank == 0);
                       return net;
                     }),
                     HasSubstr("parameter '0.bias' differs between ranks"));
}

TEST(DdpErrorsTest, NamesTheOptionThatDiffers) {
  expect_value_error(2, uses([](int64_t rank) { return DdpOptions().hook(rank == 0 ? "none" : "allreduce"); }),
                     Eq("hook differs between ranks: rank 0 has none, rank 1 has allreduce"));
  expect_value_error(2, uses([](int64_t rank) { return DdpOptions().bucket_cap_mb(rank == 0 ? 5 : 6); }),
                     Eq("bucket_cap_mb differs between ranks: rank 0 has 5, rank 1 has 6"));
  expect_value_error(2, uses([](int64_t rank) {
                       const auto options = DdpOptions().hook("quantize_per_channel");
                       return rank == 0 ? options : DdpOptions(options).channel_size(128);
                     }),
                     Eq("channel_size differs between ranks: rank 0 has 512, rank 1 has 128"));
}

TEST(DdpErrorsTest, NamesTheNodesThatDiffer) {
  const auto with = [](const hooks::WireOptions& wire) { return DdpOptions().hook("int8").wire(wire); };
  expect_value_error(3, uses([&](int64_t rank) { return rank < 2 ? with({}) : with({.node_size = 2}); }),
                     Eq("node_size differs between ranks: rank 0 has none, rank 2 has 2"));
  expect_value_error(2, uses([&](int64_t rank) { return with({.node_size = 1 + rank}); }),
                     Eq("node_size differs between ranks: rank 0 has 1, rank 1 has 2"));
  expect_value_error(2,
                     uses([&](int64_t rank) { return rank == 0 ? with({.levels = hooks::Levels::kOne}) : with({}); }),
                     Eq("levels differs between ranks: rank 0 has one, rank 1 has auto"));
}

// A rank of another version may write other bytes and order buckets differently, so it compares other values.
TEST(DdpErrorsTest, NamesWhatARankOfAnotherVersionDoesOtherwise) {
  const auto beside = [](const NamedValue& other) {
    return [=](int64_t rank, const ProcessGroupPtr& group) {
      if (rank == 1) return check_equal_on_all_ranks(group, {other});
      DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook("var5"));
    };
  };
  expect_value_error(
      2, beside({"narrowcast version", "0.3.0"}),
      Eq("narrowcast version differs between ranks: rank 0 has " + std::string(version()) + ", rank 1 has 0.3.0"));
  expect_value_error(2, beside({"order in buckets", "as gradients come"}),
                     Eq("order in buckets differs between ranks: rank 0 has by blocks, rank 1 has as gradients come"));
}

TEST(DdpErrorsTest, SaysThatNothingCanBeTrained) {
  expect_value_error(2, wraps([](int64_t /*rank*/) {
                       Sequential net(Linear(2, 2));
                       for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
                       return net;
                     }),
                     HasSubstr("no parameter that requires a gradient (of 2 parameters)"));
}

struct TwoDevicesImpl : torch::nn::Module {
  TwoDevicesImpl() {
    register_parameter("first", at::zeros({2}));
    register_parameter("second", at::zeros({2}, at::TensorOptions().device(at::kMeta)));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(DdpErrorsTest, SaysWhichParametersAreOnDifferentDevices) {
  expect_value_error(
      2,
      [](int64_t /*rank*/, const ProcessGroupPtr& group) {
        const auto net = std::make_shared<TwoDevicesImpl>();
        DistributedDataParallel ddp(net, group);
      },
      AllOf(HasSubstr("'second' is on meta"), HasSubstr("'first' is on cpu")));
}

TEST(DdpErrorsTest, SaysThatSparseGradientsAreNotSupported) {
  expect_value_error(1, wraps([](int64_t /*rank*/) {
                       return Sequential(torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2).sparse(true)));
                     }),
                     HasSubstr("sparse(false)"));
}

TEST(DdpErrorsTest, ListsTheKnownHooksForAnUnknownOne) {
  expect_value_error(1, uses([](int64_t /*rank*/) { return DdpOptions().hook("no_such_hook"); }),
                     AllOf(HasSubstr("no_such_hook"), HasSubstr("none"), HasSubstr("allreduce")));
}

TEST(DdpErrorsTest, RejectsOptionsThatContradictBeforeAnythingIsSent) {
  // Only rank 0 errs: if it sent something first, rank 1 would get further than its timeout.
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    if (rank == 0) {
      EXPECT_THROW(
          DistributedDataParallel(SmallNet(), group, DdpOptions().static_graph(true).find_unused_parameters(true)),
          c10::ValueError);
    }
    EXPECT_EQ(all_reduce_sum(group, {1.0}).at(0), 2.0);
  });
}

TEST(DdpErrorsTest, RejectsAMissingGroup) {
  EXPECT_THROW(DistributedDataParallel(SmallNet(), ProcessGroupPtr()), c10::ValueError);
  const auto empty = c10::make_intrusive<c10d::ProcessGroup>(nullptr, 0, 1);
  EXPECT_THROW(DistributedDataParallel(SmallNet(), empty), c10::ValueError);
}

TEST(DdpErrorsTest, RejectsAMissingModuleAndHook) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    EXPECT_THROW(DistributedDataParallel(std::shared_ptr<SmallNetImpl>(), group), c10::ValueError);
    DistributedDataParallel ddp(SmallNet(), group);
    EXPECT_THROW(ddp.register_comm_hook(nullptr), c10::ValueError);
  });
}

}  // namespace
}  // namespace narrowcast

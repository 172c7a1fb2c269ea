// Compares gradients of every mode with gradients computed without DistributedDataParallel.
#include <narrowcast/ddp.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kSteps = 4;  // The first step learns the order of buckets or the static graph, the second uses it.

std::vector<at::Tensor> gradients_by_rank(SmallNet& net, int64_t step, int64_t world_size, size_t parameter) {
  std::vector<at::Tensor> by_rank;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const Sample sample = sample_of(step, rank);
    by_rank.push_back(gradients_of(loss_of(net->forward(sample.x), sample), net->parameters())[parameter]);
  }
  return by_rank;
}

void expect_means(SmallNet& net, int64_t step, const ProcessGroupPtr& group) {
  const std::vector<at::Tensor> actual = gradients_in(net->parameters());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(is_mean_over_ranks(actual[i], gradients_by_rank(net, step, group->getSize(), i)))
        << "step " << step << ", parameter " << i << ", rank " << group->getRank();
  }
}

class DdpModeTest : public ::testing::TestWithParam<std::tuple<int64_t, Mode>> {};

TEST_P(DdpModeTest, AveragesGradientsExactly) {
  const auto& [world_size, mode] = GetParam();
  run_ranks(world_size, [&options = mode.options](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, options);
    SmallNet net = ddp.module();
    EXPECT_TRUE(same_on_all_ranks(group, net->parameters()));
    for (int64_t step = 0; step < kSteps; ++step) {
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
      expect_means(net, step, group);
      descend(net->parameters(), 0.1);
    }
    EXPECT_TRUE(same_on_all_ranks(group, net->parameters()));
  });
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<int64_t, Mode>>& info) {
  return "world_" + std::to_string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpModeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(all_modes())), name_of);

class DdpUnusedModeTest : public DdpModeTest {};

TEST_P(DdpUnusedModeTest, ParametersUnusedEverywhereKeepNoGradient) {
  const auto& [world_size, mode] = GetParam();
  run_ranks(world_size, [&options = mode.options](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, options);
    for (int64_t step = 0; step < kSteps; ++step) {
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      ddp.backward(loss_of(ddp.forward(sample.x, /*with_optional=*/false), sample));
      EXPECT_TRUE(ddp.module()->second->weight.grad().defined());
      EXPECT_TRUE(same_on_all_ranks(group, {ddp.module()->first->weight.grad()}));
      EXPECT_FALSE(ddp.module()->optional->weight.grad().defined()) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpUnusedModeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(modes_that_allow_unused_parameters())),
                         name_of);

class DdpUnusedTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(DdpUnusedTest, AParameterUsedOnOneRankIsAveragedWithZeros) {
  run_ranks(GetParam(), [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().find_unused_parameters(true));
    SmallNet net = ddp.module();
    const Sample sample = sample_of(0, rank);
    ddp.backward(loss_of(ddp.forward(sample.x, /*with_optional=*/rank == 0), sample));
    const Sample of_rank_0 = sample_of(0, 0);
    const auto gradient = gradients_of(loss_of(net->forward(of_rank_0.x), of_rank_0), {net->optional->weight})[0];
    const double share = 1.0 / static_cast<double>(group->getSize());
    EXPECT_TRUE(at::equal(net->optional->weight.grad(), gradient * share));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DdpUnusedTest, ::testing::Values(2, 3, 4));

// Forward gives two outputs, of which the loss uses one.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    body = register_module("body", torch::nn::Linear(8, 4));
    left = register_module("left", torch::nn::Linear(4, 4));
    right = register_module("right", torch::nn::Linear(4, 4));
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
    const at::Tensor y = body(x);
    return {left(y), {right(y)}};
  }
  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
};

TEST(DdpOutputTest, OutputsThatTheLossDoesNotUseAreUnusedParameters) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(std::make_shared<TwoHeadsImpl>(), group, DdpOptions().find_unused_parameters(true));
    for (int64_t step = 0; step < kSteps; ++step) {
      const bool uses_left = step % 2 == 0;
      const Sample sample = sample_of(step, rank);
      ddp.zero_grad();
      const auto [left, rights] = ddp.forward(sample.x);
      ddp.backward(loss_of(uses_left ? left : rights.at(0), sample));
      EXPECT_EQ(ddp.module()->left->weight.grad().defined(), uses_left);
      EXPECT_EQ(ddp.module()->right->weight.grad().defined(), !uses_left);
      EXPECT_TRUE(same_on_all_ranks(group, {ddp.module()->body->weight.grad()}));
    }
  });
}

TEST(DdpOutputTest, WithoutTheOptionAnUnusedParameterIsAnErrorInTheNextForward) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group);
    const Sample sample = sample_of(0, rank);
    ddp.backward(loss_of(ddp.forward(sample.x, /*with_optional=*/false), sample));
    try {
      ddp.forward(sample.x);
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("parameters 'optional.weight', 'optional.bias' got no gradient"),
                        HasSubstr("set find_unused_parameters")));
    }
  });
}

// Parameters that the first step has not used need no gradient later.
TEST(DdpOutputTest, AStaticGraphThatUsesLessIsAnErrorInTheNextForward) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().static_graph(true));
    const Sample sample = sample_of(0, rank);
    ddp.backward(loss_of(ddp.forward(sample.x, /*with_optional=*/false), sample));
    ddp.forward(sample.x, /*with_optional=*/false);
    ddp.backward(ddp.module()->first(sample.x).sum());
    try {
      ddp.forward(sample.x);
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("parameters 'second.weight', 'second.bias' got no gradient"));
    }
  });
}

TEST(DdpOutputTest, AStaticGraphThatChangesIsAnError) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().static_graph(true));
    const Sample sample = sample_of(0, rank);
    ddp.backward(loss_of(ddp.forward(sample.x, /*with_optional=*/false), sample));
    EXPECT_THROW(ddp.backward(loss_of(ddp.forward(sample.x), sample)), c10::Error);
  });
}

class DdpNoSyncTest : public ::testing::TestWithParam<Mode> {};

TEST_P(DdpNoSyncTest, AccumulatesLocallyThenAveragesTheSum) {
  run_ranks(2, [&options = GetParam().options](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, options);
    SmallNet net = ddp.module();
    const auto local = [&](int64_t step, int64_t of_rank) {
      const Sample sample = sample_of(step, of_rank);
      return gradients_of(loss_of(net->forward(sample.x), sample), net->parameters());
    };
    for (int64_t step = 0; step < 2 * kSteps; step += 2) {
      ddp.zero_grad();
      {
        const auto guard = ddp.no_sync();
        const auto nested = ddp.no_sync();
        const Sample sample = sample_of(step, rank);
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
      }
      EXPECT_TRUE(bytes_of(gradients_in(net->parameters())) == bytes_of(local(step, rank))) << "step " << step;
      const Sample sample = sample_of(step + 1, rank);
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const std::vector<at::Tensor> by_rank = {local(step, 0)[i] + local(step + 1, 0)[i],
                                                 local(step, 1)[i] + local(step + 1, 1)[i]};
        EXPECT_TRUE(is_mean_over_ranks(net->parameters()[i].grad(), by_rank)) << "step " << step;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, DdpNoSyncTest, ::testing::ValuesIn(all_modes()),
                         [](const auto& info) { return info.param.name; });

class DdpRepeatedTest : public ::testing::TestWithParam<Mode> {};

// Two forward and backward passes before the gradients are reset: the second adds to the mean of the first, and the sum
// is averaged.
TEST_P(DdpRepeatedTest, SeveralPassesPerStepAccumulateMeans) {
  run_ranks(2, [&options = GetParam().options](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, options);
    SmallNet net = ddp.module();
    for (int64_t pass = 0; pass < 2; ++pass) {
      const Sample sample = sample_of(pass, rank);
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const at::Tensor first_mean = mean_over_ranks(gradients_by_rank(net, 0, 2, i));
      const std::vector<at::Tensor> second = gradients_by_rank(net, 1, 2, i);
      EXPECT_TRUE(is_mean_over_ranks(net->parameters()[i].grad(), {first_mean + second[0], first_mean + second[1]}));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, DdpRepeatedTest, ::testing::ValuesIn(all_modes()),
                         [](const auto& info) { return info.param.name; });

TEST(DdpForwardTest, TwoForwardsBeforeOneBackwardAreOneReduction) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group);
    SmallNet net = ddp.module();
    const Sample a = sample_of(0, rank);
    const Sample b = sample_of(1, rank);
    ddp.backward(loss_of(ddp.forward(a.x), a) + loss_of(ddp.forward(b.x), b));
    EXPECT_TRUE(same_on_all_ranks(group, gradients_in(net->parameters())));
    const int64_t gradient_bytes = 4 * ((8 * 16 + 16) + (16 * 4 + 4) + (4 * 4 + 4));
    EXPECT_EQ(ddp.payload_bytes_sent(), gradient_bytes);  // 2 (W - 1) / W = 1 at W = 2.
  });
}

TEST(DdpForwardTest, ForwardWithoutGradientsIsTheModules) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group);
    const Sample sample = sample_of(0, rank);
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(ddp.forward(sample.x), ddp.module()->forward(sample.x)));
    }
    ddp.backward(loss_of(ddp.forward(sample.x), sample));  // The evaluation above left nothing pending.
    EXPECT_TRUE(same_on_all_ranks(group, gradients_in(ddp.module()->parameters())));
  });
}

TEST(DdpInitTest, TakesRankZerosParametersUnlessToldNotTo) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    const auto filled = [&] {
      const at::NoGradGuard no_grad;
      SmallNet net;
      for (at::Tensor& parameter : net->parameters()) parameter.fill_(static_cast<double>(rank + 1));
      return net;
    };
    DistributedDataParallel synchronised(filled(), group);
    EXPECT_EQ(synchronised.module()->first->weight[0][0].item<float>(), 1.0f);
    DistributedDataParallel own(filled(), group, DdpOptions().init_sync(false));
    EXPECT_EQ(own.module()->first->weight[0][0].item<float>(), static_cast<float>(rank + 1));
  });
}

// Ranks have data of different means, so their running means diverge in each forward.
void check_running_means(const DdpOptions& options, bool expect_same) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(torch::nn::BatchNorm1d(8), group, options);
    ddp.backward(ddp.forward(sample_of(0, rank).x + static_cast<double>(rank)).square().sum());
    EXPECT_FALSE(same_on_all_ranks(group, {ddp.module()->running_mean}));
    ddp.module()->eval();  // The next forward broadcasts and then changes nothing.
    ddp.forward(sample_of(0, rank).x);
    EXPECT_EQ(same_on_all_ranks(group, ddp.module()->buffers()), expect_same);
  });
}

TEST(DdpBuffersTest, AreRankZerosFromTheNextForwardOn) { check_running_means(DdpOptions(), /*expect_same=*/true); }

TEST(DdpBuffersTest, StayTheRanksOwnWhereNotBroadcast) {
  check_running_means(DdpOptions().broadcast_buffers(false), /*expect_same=*/false);
}

TEST(DdpBucketsTest, AreRebuiltOnceInTheOrderOfGradients) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group, DdpOptions().bucket_cap_mb(kTinyMb));
    const auto step = [&](int64_t number) {
      const Sample sample = sample_of(number, rank);
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
    };
    step(0);
    EXPECT_THAT(ddp.bucket_bytes(), SizeIs(1));
    step(1);
    const std::vector<int64_t> rebuilt = ddp.bucket_bytes();
    EXPECT_THAT(rebuilt, SizeIs(6));
    EXPECT_EQ(rebuilt.front() + rebuilt[1], 4 * (4 * 4 + 4));  // The last layer's gradients come first.
    step(2);
    EXPECT_EQ(ddp.bucket_bytes(), rebuilt);
  });
}

TEST(DdpBucketsTest, FirstAndOtherCapsHold) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    // Gradients from the last layer on: 16, 64, 256 and 512 bytes or more; a bucket closes when it reaches its cap.
    const DdpOptions options =
        DdpOptions().find_unused_parameters(true).first_bucket_mb(64.0 / (1 << 20)).bucket_cap_mb(300.0 / (1 << 20));
    DistributedDataParallel ddp(SmallNet(), group, options);
    int64_t total = 0;
    for (const int64_t bytes : ddp.bucket_bytes()) total += bytes;
    EXPECT_EQ(total, 4 * ((8 * 16 + 16) + (16 * 4 + 4) + (4 * 4 + 4)));
    EXPECT_GT(ddp.bucket_bytes().size(), 1u);
  });
}

TEST(DdpPayloadTest, CountsReducedBackwardPassesOnly) {
  run_ranks(4, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(SmallNet(), group);
    const Sample sample = sample_of(0, rank);
    const int64_t gradient_bytes = 4 * ((8 * 16 + 16) + (16 * 4 + 4) + (4 * 4 + 4));
    EXPECT_EQ(ddp.payload_bytes_sent(), 0);
    for (int64_t step = 1; step <= 3; ++step) {
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
      EXPECT_EQ(ddp.payload_bytes_sent(), step * gradient_bytes * 3 / 2);  // 2 (W - 1) / W at W = 4.
    }
    const auto guard = ddp.no_sync();
    ddp.backward(loss_of(ddp.forward(sample.x), sample));
    EXPECT_EQ(ddp.payload_bytes_sent(), 3 * gradient_bytes * 3 / 2);
  });
}

TEST(DdpPayloadTest, SaysHowMuchSmallerThanFloat32ItIs) {
  using HookAndCompression = std::pair<const char*, double>;
  for (const auto& [hook, compression] :
       std::vector<HookAndCompression>{{"none", 1}, {"allreduce", 1}, {"bf16_compress", 2}}) {
    run_ranks(2, [&, hook = hook, compression = compression](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook(hook));
      EXPECT_EQ(ddp.compression(), std::nullopt) << hook;
      for (int64_t step = 0; step < 2; ++step) {
        const Sample sample = sample_of(step, rank);
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        EXPECT_EQ(ddp.compression(), compression) << hook;
      }
    });
  }
}

TEST(DdpPayloadTest, SaysNoCompressionOfOneRank) {
  for (const char* const hook : {"none", "allreduce", "noop"}) {
    run_ranks(1, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(SmallNet(), group, DdpOptions().hook(hook));
      const Sample sample = sample_of(0, rank);
      ddp.backward(loss_of(ddp.forward(sample.x), sample));
      EXPECT_EQ(ddp.compression(), std::nullopt) << hook;
    });
  }
}

}  // namespace
}  // namespace narrowcast

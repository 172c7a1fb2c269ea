// Optimizers that are sharded over all ranks, with a copy of each shard on another node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/sharding/held_by_ranks.h"
#include "tests/trainer/ddp/sharding/over_all_fixtures.h"
#include "trainer/ddp/sharding/sharded_parts.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;
using Group = ProcessGroupPtr;

constexpr int64_t kCopySteps = 5;  // Buckets are rebuilt before the second one.
constexpr double kClippedNorm = 0.05;

ShardOptions twice(WireFormat format = kDefaultParameterFormat) {
  return ShardOptions().copies(2).parameter_format(format);
}

class SecondCopies : public ::testing::TestWithParam<OverAllCase> {};

// In fp32, averages reach the copies with all their bits.
TEST_P(SecondCopies, ExactOnesDoNotChangeTheBits) {
  HeldByRanks held;
  run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
    NetTraining once(group, ddp_options_of(GetParam()));
    NetTraining parts(group, ddp_options_of(GetParam()));
    ShardedOptimizer usual(*once.adamw, once.ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice(WireFormat::kFp32));
    for (int64_t step = 1; step <= kCopySteps; ++step) {
      compute_gradients(once, step, GetParam());
      const double norm = usual.clip_gradient_norm(kClippedNorm);
      usual.step();
      compute_gradients(parts, step, GetParam());
      EXPECT_EQ(sharded.clip_gradient_norm(kClippedNorm), norm) << "step " << step;
      sharded.step();
      expect_equal_parameters(parts, once, "rank " + std::to_string(rank) + ", step " + std::to_string(step));
    }
    held.add(rank, sharded.parts().held_pieces(parts.named()));
  });
  held.expect_two_equal_copies({"exp_avg", "exp_avg_sq"});
}

TEST_P(SecondCopies, OfMastersAndStateAreEqualToTheirOwners) {
  HeldByRanks held;
  run_ranks(GetParam().layout.world_size, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of(GetParam()));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice());
    for (int64_t step = 1; step <= kCopySteps; ++step) {
      compute_gradients(parts, step, GetParam());
      sharded.clip_gradient_norm(kClippedNorm);
      sharded.start_step();
    }
    EXPECT_GT(sharded.largest_difference(), 0);
    EXPECT_TRUE(same_on_all_ranks(group, parts.parameters()));
    held.add(rank, sharded.parts().held_pieces(parts.named()));
  });
  held.expect_two_equal_copies({"exp_avg", "exp_avg_sq", "master"});
}

INSTANTIATE_TEST_SUITE_P(Nodes, SecondCopies,
                         ::testing::Values(OverAllCase{"int8", {2, 1}}, OverAllCase{"int8", {3, 1}},
                                           OverAllCase{"int4", {4, 1}}, OverAllCase{"int8", {4, 2}},
                                           OverAllCase{"int8", {4, 3}}, OverAllCase{"int8", {5, 2}},
                                           OverAllCase{"int8", {6, 2}}, OverAllCase{"power_sgd", {3, 1}},
                                           OverAllCase{"int8", {3, 1}, Way::kUnusedParameters},
                                           OverAllCase{"int8", {3, 1}, Way::kBucketViews},
                                           OverAllCase{"int8", {4, 2}, Way::kErrorFeedback}),
                         [](const auto& info) {
                           return info.param.hook + "_" + std::to_string(info.param.layout.world_size) + "_nodes_of_" +
                                  std::to_string(*info.param.layout.node_size) + "_" +
                                  std::to_string(static_cast<int>(info.param.way));
                         });

// 45,753 elements are 45 grains of 1024: 11 for ranks 0 to 2, and for rank 3 the rest. Without copies, a rank sends
// three messages with its shard.
TEST(SecondCopiesBytes, AreOneMoreMessage) {
  run_ranks(4, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {4, 1}}).bucket_cap_mb(100));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice());
    parts.backward(1);
    sharded.step();
    const int64_t shard = encoded_size(rank < 3 ? 11 * 1024 : 45'753 - 33 * 1024, WireFormat::kInt8B128);
    EXPECT_EQ(sharded.payload_bytes_sent(), 4 * (shard + 16));
  });
}

TEST(SecondCopiesState, IsLoadedByBoth) {
  hooks::HookState saved;
  std::vector<at::Tensor> parameters;
  run_ranks(2, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {2, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice());
    compute_gradients(parts, 1, {});
    sharded.step();
    const hooks::HookState state = sharded.state(parts.named());
    if (rank == 0) {
      saved = state;
      for (const at::Tensor& parameter : parts.parameters()) parameters.push_back(parameter.detach().clone());
    }
  });
  HeldByRanks held;
  run_ranks(5, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {5, 2}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice());
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) parts.parameters()[i].copy_(parameters[i]);
    sharded.load_state(saved, parts.named());
    held.add(rank, sharded.parts().held_pieces(parts.named()));
  });
  held.expect_two_equal_copies({"exp_avg", "exp_avg_sq", "master"});
}

TEST(SecondCopiesErrors, NeedAFormatWithoutInfinity) {
  run_ranks(2, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {1, 1}}));
    const ShardOptions options = ShardOptions().copies(2).parameter_format(WireFormat::kFp16);
    EXPECT_THAT(error_message<c10::ValueError>([&] { ShardedOptimizer(*parts.adamw, parts.ddp.reducer(), options); }),
                ::testing::HasSubstr("copies: 2 copies need a parameter_format other than fp16"));
  });
}

TEST(SecondCopiesErrors, NeedASecondNode) {
  run_ranks(2, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {2}}));
    const auto refusal = [&](const ShardOptions& options, bool is_over_all = true) {
      return error_message<c10::ValueError>([&] {
        is_over_all ? ShardedOptimizer(*parts.adamw, parts.ddp.reducer(), options)
                    : ShardedOptimizer(*parts.adamw, group, options);
      });
    };
    EXPECT_THAT(refusal(twice()), HasSubstr("need two nodes, but all 2 ranks are on one"));
    EXPECT_THAT(refusal(twice().whole_parameters(true)), HasSubstr("need two nodes, but all 2 ranks are on one"));
    EXPECT_THAT(refusal(ShardOptions().copies(2), false), HasSubstr("need two nodes, but all 2 ranks are on one"));
    EXPECT_THAT(refusal(ShardOptions().copies(3)), HasSubstr("copies: must be 1 or 2, but is 3"));
    EXPECT_THAT(refusal(ShardOptions().copies(group->getRank() + 1)), HasSubstr("copies"));
  });
  run_ranks(4, [&](int64_t /*rank*/, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {4, 2}}));
    const ShardedOptimizer sharded(*parts.adamw, group, ShardOptions().node_size(2).copies(2));
    EXPECT_EQ(sharded.shards(), 2) << "each node has all shards";
  });
}

// Whole parameters, which hooks average on all ranks.
TEST(SecondCopiesWhole, HaveTheBitsOfOneCopy) {
  std::atomic<int64_t> states = 0;
  run_ranks(3, [&](int64_t rank, const Group& group) {
    NetTraining once(group, ddp_options_of({"int8", {3, 1}}));
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    const ShardOptions options = ShardOptions().whole_parameters(true).parameter_format(WireFormat::kFp32);
    ShardedOptimizer usual(*once.adamw, once.ddp.reducer(), options);
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), ShardOptions(options).copies(2));
    for (int64_t step = 1; step <= 3; ++step) {
      compute_gradients(once, step, {});
      usual.step();
      compute_gradients(parts, step, {});
      sharded.step();
      expect_equal_parameters(parts, once, "rank " + std::to_string(rank));
    }
    states += std::ssize(parts.adamw->state());
  });
  EXPECT_EQ(states, 14) << "of seven parameters, each on two ranks";
}

// The gradient of one rank cannot be used. Ranks that meet before a step find out before any of them takes it.
TEST(SecondCopiesErrors, AFailureOfOneRankReachesAll) {
  run_ranks(3, [&](int64_t rank, const Group& group) {
    NetTraining parts(group, ddp_options_of({"int8", {3, 1}}));
    ShardedOptimizer sharded(*parts.adamw, parts.ddp.reducer(), twice());
    compute_gradients(parts, 1, {});
    if (rank == 1) {
      for (at::Tensor parameter : parts.parameters()) parameter.mutable_grad() = parameter.grad().to_sparse();
      EXPECT_FALSE(sharded.parts().share_gradients());
      EXPECT_TRUE(sharded.parts().meet());
      EXPECT_THAT(error_message<c10::ValueError>([&] { sharded.step(); }), HasSubstr("cannot be sharded"));
    } else {
      EXPECT_EQ(sharded.parts().share_gradients(), rank == 0) << "rank 2 holds the copy of rank 1's shard";
      const std::exception_ptr failure = sharded.parts().meet();
      ASSERT_TRUE(failure);
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { std::rethrow_exception(failure); }), HasSubstr("rank 1"));
      EXPECT_THAT(error_message<c10::DistBackendError>([&] { sharded.step(); }), HasSubstr("rank "));
    }
  });
}

}  // namespace
}  // namespace narrowcast::testing

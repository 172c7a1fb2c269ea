#include <narrowcast/join.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/sharded_optimizer.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::HasSubstr;

SmallNet same_net() {
  SmallNet net;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const at::Tensor& parameter : net->parameters()) parameter.copy_(0.3 * seeded_randn(seed++, parameter.sizes()));
  return net;
}

// Part p of the data has 4 p batches of p + 1 samples.
int64_t batches_of(int64_t part) { return 4 * part; }

Sample batch_of(int64_t pass, int64_t part) {
  const Sample sample = sample_of(pass, part);
  return {sample.x.narrow(0, 0, part + 1), sample.y.narrow(0, 0, part + 1)};
}

// The parameters after the same training in one process: each step takes the samples of all parts that have data.
std::vector<at::Tensor> trained_alone(int64_t parts) {
  SmallNet net = same_net();
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  for (int64_t pass = 0; pass < batches_of(parts - 1); ++pass) {
    at::Tensor sum = at::zeros({});
    int64_t samples = 0;
    for (int64_t part = 0; part < parts; ++part) {
      if (pass >= batches_of(part)) continue;
      const Sample batch = batch_of(pass, part);
      sum = sum + loss_of(net->forward(batch.x), batch) * (part + 1);
      samples += part + 1;
    }
    optimizer.zero_grad();
    (sum / samples).backward();
    optimizer.step();
  }
  return net->parameters();
}

// Optimizes with AdamW, sharded over all ranks if `shards`.
struct Optimizer {
  Optimizer(DistributedDataParallel<SmallNet>& ddp, bool shards) : adamw(ddp.module()->parameters(), 0.01) {
    if (shards) sharded.emplace(adamw, ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
  }
  void step() { sharded ? sharded->step() : void(adamw.step()); }
  torch::optim::AdamW adamw;
  std::optional<ShardedOptimizer> sharded;
};

enum class Order { kRising, kFalling };  // Rank 0 has no data, or most.

struct Training {
  int64_t world_size = 2;
  DdpOptions options = {};
  bool has_shards = false;
  Order order = Order::kRising;
};

// The parameters of rank 0, after a check that all ranks have the same.
std::vector<at::Tensor> trained_together(const Training& training) {
  std::vector<at::Tensor> trained;
  run_ranks(training.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, training.options);
    Optimizer optimizer(ddp, training.has_shards);
    const auto step = [&] {
      optimizer.step();
      ddp.zero_grad();
    };
    const int64_t last = training.world_size - 1;
    const int64_t part = training.order == Order::kRising ? rank : last - rank;
    Join join(ddp.reducer());
    for (int64_t pass = 0; pass < batches_of(part); ++pass) {
      const Sample batch = batch_of(pass, part);
      const double weight = join.begin_pass(part + 1);
      ddp.backward(loss_of(ddp.forward(batch.x), batch), weight);
      step();
    }
    EXPECT_EQ(join.finish(step), batches_of(last) - batches_of(part));
    const std::vector<at::Tensor> parameters = ddp.module()->parameters();
    EXPECT_TRUE(same_on_all_ranks(group, parameters)) << training.options.hook();
    if (rank == 0) trained = parameters;
  });
  return trained;
}

// AdamW divides by the gradients' size, so rounding errors of float32 in small gradients grow.
void expect_trained_as_alone(const Training& training) {
  const std::vector<at::Tensor> expected = trained_alone(training.world_size);
  const std::vector<at::Tensor> actual = trained_together(training);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((actual.at(i) - expected[i]).abs().max().item<double>(), 1e-4) << training.options.hook();
  }
}

class JoinTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(JoinTest, TrainsOnAllSamplesOfRanksThatHaveData) {
  for (const std::string hook : {"none", "allreduce"}) {
    for (const bool views : {false, true}) {
      for (const Order order : {Order::kRising, Order::kFalling}) {
        const auto options = DdpOptions().hook(hook).bucket_cap_mb(kTinyMb).gradient_as_bucket_view(views);
        expect_trained_as_alone({.world_size = GetParam(), .options = options, .order = order});
      }
    }
  }
}

TEST_P(JoinTest, KeepsReplicasEqualWithHooksThatHaveState) {
  for (const DdpOptions& options : {DdpOptions().hook("int8").wire({.error_feedback = true, .node_size = 1}),
                                    DdpOptions().hook("power_sgd").power_sgd({.start = 2}), DdpOptions().hook("auto"),
                                    DdpOptions().hook("int4").bucket_cap_mb(std::nullopt)}) {
    trained_together({.world_size = GetParam(), .options = options});
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, JoinTest, ::testing::Values(2, 3));

TEST(Join, ShadowsStepsOfAShardedOptimizer) {
  expect_trained_as_alone({.options = DdpOptions().hook("allreduce"), .has_shards = true});
}

// A rank whose data ends between two passes of a step adds what it has.
TEST(Join, ShadowsPassesInsideNoSync) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, DdpOptions().hook("allreduce"));
    Join join(ddp.reducer());
    std::vector<at::Tensor> averaged;
    const auto keep = [&] { averaged = gradients_in(ddp.module()->parameters()); };
    const auto run = [&](int64_t pass) {
      const Sample sample = sample_of(pass, rank);
      const double weight = join.begin_pass(6);
      EXPECT_EQ(weight, pass == 0 ? 0.5 : 1);
      ddp.backward(loss_of(ddp.forward(sample.x), sample), weight);
    };
    {
      const auto guard = ddp.no_sync();
      run(0);
      if (rank == 1) run(1);
    }
    if (rank == 1) {
      run(2);
      keep();
    }
    EXPECT_EQ(join.finish(keep), rank == 0 ? 1 : 0);
    SmallNet net = same_net();
    const auto loss = [&](int64_t pass, int64_t of) {
      const Sample sample = sample_of(pass, of);
      return loss_of(net->forward(sample.x), sample);
    };
    const auto expected = gradients_of(0.5 * (loss(0, 0) + loss(0, 1)) + loss(1, 1) + loss(2, 1), net->parameters());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT((averaged.at(i) - expected[i]).abs().max().item<double>(), 1e-6);
    }
  });
}

TEST(Join, RefusesWhatCannotBeShadowed) {
  run_ranks(2, [](int64_t, const ProcessGroupPtr& group) {
    const auto complaint = [&](const DdpOptions& options) {
      DistributedDataParallel ddp(same_net(), group, options);
      return error_message<c10::ValueError>([&] { Join join(ddp.reducer()); });
    };
    EXPECT_THAT(complaint(DdpOptions().hook("noop")), HasSubstr("the hook noop, which lets replicas differ"));
    EXPECT_THAT(complaint(DdpOptions().static_graph(true)), HasSubstr("Join: cannot be used with static_graph"));
    EXPECT_THAT(complaint(DdpOptions().find_unused_parameters(true)), HasSubstr("find_unused_parameters"));
  });
}

TEST(Join, AWrongAnnouncementIsAnErrorOfAllRanks) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, DdpOptions());
    Join join(ddp.reducer());
    for (const int64_t wrong : {0, -3}) {
      EXPECT_THAT(error_message<c10::ValueError>([&] { join.begin_pass(rank == 0 ? wrong : 4); }),
                  HasSubstr(rank == 0 ? c10::str("must be at least 1 in Join::begin_pass, but is ", wrong)
                                      : "but is less on another rank"));
    }
    const auto begin_pass = [&] { return error_message<c10::ValueError>([&] { join.begin_pass(4); }); };
    const auto begin_alone = [&] {
      const auto guard = ddp.no_sync();
      return begin_pass();
    };
    EXPECT_THAT(rank == 0 ? begin_alone() : begin_pass(),
                HasSubstr("Join: only 1 of 2 ranks with data are inside no_sync"));
  });
}

// Rank 1 ends without finish().
TEST(Join, ARankThatLeavesIsAnErrorOfTheOthers) {
  using std::chrono::steady_clock;
  const auto began = steady_clock::now();
  EXPECT_THROW(run_ranks(2,
                         [](int64_t rank, const ProcessGroupPtr& group) {
                           DistributedDataParallel ddp(same_net(), group, DdpOptions());
                           Join join(ddp.reducer());
                           if (rank == 1) throw std::runtime_error("has no data left");
                           EXPECT_THROW(join.begin_pass(4), c10::DistBackendError);
                           throw std::logic_error("it was noticed");
                         }),
               std::exception);
  EXPECT_LT(steady_clock::now() - began, kPatience);
}

}  // namespace
}  // namespace narrowcast

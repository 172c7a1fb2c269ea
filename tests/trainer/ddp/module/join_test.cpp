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

enum class Shards { kNone, kWithinNodes, kOverAllRanks };

struct Optimizer {
  Optimizer(DistributedDataParallel<SmallNet>& ddp, Shards shards) : adamw(ddp.module()->parameters(), 0.01) {
    if (shards == Shards::kWithinNodes) {
      sharded.emplace(adamw, ddp.process_group(), ShardOptions().node_size(ddp.process_group()->getSize()));
    }
    if (shards == Shards::kOverAllRanks) {
      sharded.emplace(adamw, ddp.reducer(), ShardOptions().parameter_format(WireFormat::kFp32));
    }
  }
  void step() { sharded ? sharded->step() : void(adamw.step()); }
  torch::optim::AdamW adamw;
  std::optional<ShardedOptimizer> sharded;
};

enum class Order { kRising, kFalling };  // Rank 0 has no data, or most.

// When a training clears gradients: before the first backward pass of a step, or after the optimizer's step.
enum class Clearing { kBeforePass, kAfterStep };
constexpr Clearing kClearings[] = {Clearing::kBeforePass, Clearing::kAfterStep};

struct Training {
  int64_t world_size = 2;
  DdpOptions options = {};
  Shards shards = Shards::kNone;
  Order order = Order::kRising;
  Clearing clearing = Clearing::kAfterStep;
};

// The parameters of rank 0, after a check that all ranks have the same.
std::vector<at::Tensor> trained_together(const Training& training) {
  std::vector<at::Tensor> trained;
  run_ranks(training.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, training.options);
    Optimizer optimizer(ddp, training.shards);
    const auto step = [&] {
      optimizer.step();
      if (training.clearing == Clearing::kAfterStep) ddp.zero_grad();
    };
    const int64_t last = training.world_size - 1;
    const int64_t part = training.order == Order::kRising ? rank : last - rank;
    Join join(ddp.reducer());
    for (int64_t pass = 0; pass < batches_of(part); ++pass) {
      const Sample batch = batch_of(pass, part);
      const double weight = join.begin_pass(part + 1);
      if (training.clearing == Clearing::kBeforePass) ddp.zero_grad();
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
        for (const Clearing clearing : kClearings) {
          expect_trained_as_alone({.world_size = GetParam(), .options = options, .order = order, .clearing = clearing});
        }
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
  for (const Shards shards : {Shards::kWithinNodes, Shards::kOverAllRanks}) {
    for (const Clearing clearing : kClearings) {
      for (const Order order : {Order::kRising, Order::kFalling}) {
        expect_trained_as_alone(
            {.options = DdpOptions().hook("allreduce"), .shards = shards, .order = order, .clearing = clearing});
      }
    }
  }
}

constexpr int64_t kPasses = 6;         // of rank 1
constexpr int64_t kPassesOfAStep = 2;  // all but the last inside no_sync

// The gradients of a step, if rank 0 has data in the first `passes` passes.
std::vector<at::Tensor> gradients_of_step(int64_t step, int64_t passes) {
  SmallNet net = same_net();
  at::Tensor loss = at::zeros({});
  for (int64_t pass = step * kPassesOfAStep; pass < (step + 1) * kPassesOfAStep; ++pass) {
    for (int64_t rank = pass < passes ? 0 : 1; rank < 2; ++rank) {
      const Sample sample = sample_of(pass, rank);
      loss = loss + loss_of(net->forward(sample.x), sample) * (pass < passes ? 0.5 : 1);
    }
  }
  return gradients_of(loss, net->parameters());
}

// Rank 0 has data in the first `passes` passes. If its data ends between two passes of a step, it adds what it has.
void expect_sums_of_steps(int64_t passes, Clearing clearing, const DdpOptions& options) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, options);
    std::vector<std::vector<at::Tensor>> averaged;
    const auto end_step = [&] {
      averaged.emplace_back();
      for (const at::Tensor& parameter : ddp.module()->parameters())
        averaged.back().push_back(parameter.grad().clone());
      if (clearing == Clearing::kAfterStep) ddp.zero_grad();
    };
    const Sample earlier = sample_of(99, rank);
    ddp.backward(loss_of(ddp.forward(earlier.x), earlier));  // A step before this Join.
    end_step();
    averaged.clear();
    Join join(ddp.reducer());
    const auto run = [&](int64_t pass) {
      const Sample sample = sample_of(pass, rank);
      const double weight = join.begin_pass(6);
      ddp.backward(loss_of(ddp.forward(sample.x), sample), weight);
    };
    for (int64_t pass = 0; pass < (rank == 0 ? passes : kPasses); ++pass) {
      if (clearing == Clearing::kBeforePass && pass % kPassesOfAStep == 0) ddp.zero_grad();
      if ((pass + 1) % kPassesOfAStep == 0) {
        run(pass);
        end_step();
      } else {
        const auto guard = ddp.no_sync();
        run(pass);
      }
    }
    join.finish(end_step);
    ASSERT_EQ(averaged.size(), kPasses / kPassesOfAStep);
    for (size_t step = 0; step < averaged.size(); ++step) {
      const auto expected = gradients_of_step(static_cast<int64_t>(step), passes);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT((averaged[step].at(i) - expected[i]).abs().max().item<double>(), 1e-6) << step << ", " << passes;
      }
    }
  });
}

TEST(Join, ShadowsPassesInsideNoSync) {
  for (const Clearing clearing : kClearings) {
    for (const bool views : {false, true}) {
      for (int64_t passes = 0; passes <= kPasses; ++passes) {
        expect_sums_of_steps(passes, clearing, DdpOptions().hook("allreduce").gradient_as_bucket_view(views));
      }
    }
  }
}

// Its buffer contains, for each pass, the number of the rank whose forward pass wrote it.
struct WriterNetImpl : torch::nn::Module {
  WriterNetImpl() {
    net = register_module("net", same_net());
    writers = register_buffer("writers", at::full({9}, -1.0));
  }
  at::Tensor forward(const at::Tensor& x, int64_t pass, int64_t rank) {
    writers[pass] = rank;
    return net->forward(x);
  }
  SmallNet net{nullptr};
  at::Tensor writers;
};
TORCH_MODULE(WriterNet);

TEST(Join, BuffersComeFromTheLowestRankThatHasData) {
  struct Case {
    std::vector<int64_t> passes;  // by rank
    std::vector<float> writers;   // by pass; the last pass is one of all ranks, without a Join
  };
  for (const Case& value : {Case{{0, 4, 8}, {1, 1, 1, 1, 2, 2, 2, 2, 0}}, Case{{4, 8, 0}, {0, 0, 0, 0, 1, 1, 1, 1, 0}},
                            Case{{8, 0, 4}, {0, 0, 0, 0, 0, 0, 0, 0, 0}}}) {
    run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(WriterNet(), group, DdpOptions());
      const auto loss = [&](int64_t pass) {
        const Sample sample = sample_of(pass, rank);
        return loss_of(ddp.forward(sample.x, pass, rank), sample);
      };
      Join join(ddp.reducer());
      for (int64_t pass = 0; pass < value.passes.at(static_cast<size_t>(rank)); ++pass) {
        const double weight = join.begin_pass(6);
        ddp.backward(loss(pass), weight);
        ddp.zero_grad();
      }
      join.finish([&] { ddp.zero_grad(); });
      ddp.backward(loss(8));
      ddp.sync_buffers();
      EXPECT_TRUE(ddp.module()->writers.equal(at::tensor(value.writers))) << rank << ddp.module()->writers;
    });
  }
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

TEST(Join, EndingInsideNoSyncIsAnErrorOfAllRanks) {
  run_ranks(2, [](int64_t rank, const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(same_net(), group, DdpOptions());
    Join join(ddp.reducer());
    const auto end = [&] {
      const auto guard = ddp.no_sync();
      return error_message<c10::ValueError>([&] { join.finish([] {}); });
    };
    EXPECT_THAT(rank == 0 ? end() : error_message<c10::ValueError>([&] { join.begin_pass(4); }),
                HasSubstr("finish() is called inside no_sync on 1 of 2 ranks"));
  });
}

// Rank 0 has no data, and runs the announced pass.
TEST(Join, AnotherPassThanAnnouncedIsAnErrorOfAllRanks) {
  for (const std::string hook : {"none", "allreduce"}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(same_net(), group, DdpOptions().hook(hook));
      Join join(ddp.reducer());
      const auto run = [&] {
        join.begin_pass(6);
        const auto late_guard = ddp.no_sync();
        ddp.forward(sample_of(0, 1).x);
      };
      EXPECT_THAT(error_message<c10::ValueError>([&] { rank == 0 ? void(join.finish([] {})) : run(); }),
                  HasSubstr("rank 1 is inside no_sync in a pass for which begin_pass was called outside of it"));
    });
  }
}

// Before the first pass, ranks compare the pass before they rebuild buckets. Later only the ranks that have data fail.
TEST(Join, APassAnnouncedInsideNoSyncMayNotAverage) {
  for (const int64_t passes : {0, 3}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      DistributedDataParallel ddp(same_net(), group, DdpOptions());
      Join join(ddp.reducer());
      const auto run = [&](int64_t pass) { return loss_of(ddp.forward(sample_of(pass, 1).x), sample_of(pass, 1)); };
      const auto run_all = [&] {
        for (int64_t pass = 0; pass < passes; ++pass) {
          const double weight = join.begin_pass(6);
          ddp.backward(run(pass), weight);
          ddp.zero_grad();
        }
        {
          const auto early_guard = ddp.no_sync();
          join.begin_pass(6);
        }
        run(passes);
      };
      const std::string wrong = "rank 1 is not inside no_sync in a pass for which begin_pass was called inside of it";
      if (passes == 0) {
        EXPECT_THAT(error_message<c10::ValueError>([&] { rank == 0 ? void(join.finish([] {})) : run_all(); }),
                    HasSubstr(wrong));
        return;
      }
      if (rank == 1) {
        EXPECT_THAT(error_message<c10::ValueError>(run_all), HasSubstr(wrong));
      }
      EXPECT_EQ(join.finish([] {}), rank == 0 ? passes : 0);
    });
  }
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

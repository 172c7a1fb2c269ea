#include <narrowcast/outer_optimizer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/wire_format.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kOuterWorlds[] = {1, 2, 3, 4, 5, 8};

at::Tensor mean_of(const std::vector<at::Tensor>& by_rank) {
  at::Tensor sum = by_rank[0].clone();
  for (size_t rank = 1; rank < by_rank.size(); ++rank) sum += by_rank[rank];
  return sum / static_cast<double>(by_rank.size());
}

// Both ways to configure it, compared with the mean in float32 in the order of ranks.
TEST(OuterOptimizer, OuterSgdOfRateOneIsPeriodicAveragingBitForBit) {
  for (const int64_t world : kOuterWorlds) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      SmallTraining by_hand(rank);
      SmallTraining averaged(rank);
      SmallTraining stepped(rank);
      OuterOptimizer average(*averaged.inner, group, outer_options(3));
      OuterOptimizer sgd(*stepped.inner, group, outer_options(3).optimizer(OuterKind::kSgd).learning_rate(1));
      for (int64_t step = 1; step <= 12; ++step) {
        by_hand.compute_gradients();
        by_hand.inner->step();
        if (step % 3 == 0 && world > 1) by_hand.set(mean_of(gathered(group, by_hand.flat())));
        averaged.step(average);
        stepped.step(sgd);
        EXPECT_TRUE(at::equal(averaged.flat(), by_hand.flat())) << world << " ranks, step " << step;
        EXPECT_TRUE(at::equal(stepped.flat(), by_hand.flat())) << world << " ranks, step " << step;
        EXPECT_EQ(average.replicas_are_equal(), world == 1 || step % 3 == 0);
        EXPECT_EQ(same_on_all_ranks(group, averaged.parameters), world == 1 || step % 3 == 0);
      }
      EXPECT_EQ(average.exchanges(), 4);
    });
  }
}

// The mean of W ranks' parameters after a step equals the step with the mean gradient. With the outer optimizer, each
// step rounds every rank's parameter and its product, W sums and a quotient. With DistributedDataParallel it rounds W
// sums of gradients. Together these are less than 2 (W + 3) roundings of at most u times the largest number. At this
// rate a step increases an earlier difference by less than a factor of 2 (loss and network are smooth, their second
// derivatives times 0.05 are below 1), and 4 steps follow.
TEST(OuterOptimizer, PlainSgdWithAnExchangeInEachStepIsDistributedDataParallelToRounding) {
  for (const int64_t world : kOuterWorlds) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      SmallNet replicated;
      SmallNet alone;
      DistributedDataParallel<SmallNet> ddp(replicated, group);
      {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < alone->parameters().size(); ++i) {
          alone->parameters()[i].copy_(replicated->parameters()[i]);
        }
      }
      torch::optim::SGD ddp_sgd(replicated->parameters(), torch::optim::SGDOptions(0.05));
      torch::optim::SGD sgd(alone->parameters(), torch::optim::SGDOptions(0.05));
      OuterOptimizer outer(sgd, group, outer_options(1));
      for (int64_t step = 0; step < 5; ++step) {
        const Sample sample = sample_of(step, rank);
        ddp_sgd.zero_grad();
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        ddp_sgd.step();
        sgd.zero_grad();
        loss_of(alone->forward(sample.x), sample).backward();
        outer.step();
        const double tolerance = 2.0 * static_cast<double>(world + 3) * kUnit * std::pow(2, step);
        for (size_t i = 0; i < alone->parameters().size(); ++i) {
          const at::Tensor expected = replicated->parameters()[i];
          EXPECT_LE((alone->parameters()[i] - expected).abs().max().item<double>(), tolerance)
              << world << " ranks, step " << step;
        }
      }
    });
  }
}

struct Schedule {
  OuterOptions options;
  double learning_rate;
  double momentum;
  int64_t first;
};

// All ranks in float64, computed from the definition.
class Simulation {
 public:
  Simulation(const Schedule& schedule, int64_t world) : schedule_(schedule), velocity_(at::zeros({51}, at::kDouble)) {
    for (int64_t rank = 0; rank < world; ++rank) {
      own_.push_back(SmallTraining(rank).flat().to(at::kDouble));
      targets_.push_back(SmallTraining(rank).flat_target().to(at::kDouble));
    }
    reference_ = own_[0].clone();
  }

  void step() {
    ++step_;
    for (size_t rank = 0; rank < own_.size(); ++rank) own_[rank] -= kInnerRate * (own_[rank] - targets_[rank]);
    const OuterOptions& options = schedule_.options;
    const int64_t between = options.sync_every() / options.fragments();
    for (int64_t fragment = 0; fragment < options.fragments(); ++fragment) {
      const int64_t since = step_ - schedule_.first - fragment * between;
      if (since >= 0 && since % options.sync_every() == 0) sent_ = reference_ - mean_of(own_);
      const int64_t joined = since - options.overlap_steps();
      if (joined >= 0 && joined % options.sync_every() == 0) join(fragment);
    }
  }

  const at::Tensor& own(int64_t rank) const { return own_[static_cast<size_t>(rank)]; }
  const at::Tensor& reference() const { return reference_; }

 private:
  // 51 elements in equal parts, the first ones longer by one.
  void join(int64_t fragment) {
    const int64_t count = schedule_.options.fragments();
    const int64_t begin = fragment * (51 / count) + std::min(fragment, 51 % count);
    const int64_t numel = 51 / count + (fragment < 51 % count ? 1 : 0);
    const at::Tensor mean = sent_.narrow(0, begin, numel);
    const at::Tensor velocity = velocity_.narrow(0, begin, numel);
    velocity.mul_(schedule_.momentum).add_(mean);
    const bool looks_ahead = schedule_.options.optimizer() == OuterKind::kNesterov;
    const at::Tensor reference = reference_.narrow(0, begin, numel);
    reference.sub_(schedule_.learning_rate * (looks_ahead ? mean + schedule_.momentum * velocity : velocity));
    for (const at::Tensor& own : own_) {
      const double mix = schedule_.options.mix();
      own.narrow(0, begin, numel).mul_(mix).add_((1 - mix) * reference);
    }
  }

  const Schedule& schedule_;
  std::vector<at::Tensor> own_;
  std::vector<at::Tensor> targets_;
  at::Tensor reference_;
  at::Tensor velocity_;
  at::Tensor sent_;
  int64_t step_ = 0;
};

const Schedule kSchedules[] = {
    {outer_options(4), 1, 0, 4},
    {outer_options(4).first_exchange(1), 1, 0, 1},
    {outer_options(4).overlap_steps(3), 1, 0, 4},
    {outer_options(5).optimizer(OuterKind::kSgd).learning_rate(0.75), 0.75, 0, 5},
    {outer_options(3).optimizer(OuterKind::kSgd).learning_rate(0.5).momentum(0.5).overlap_steps(2), 0.5, 0.5, 3},
    {outer_options(6).optimizer(OuterKind::kNesterov), 0.7, 0.9, 6},
    {outer_options(12).optimizer(OuterKind::kNesterov).learning_rate(0.4).fragments(3).overlap_steps(3).mix(0.5), 0.4,
     0.9, 4},
    {outer_options(8).optimizer(OuterKind::kNesterov).fragments(4).overlap_steps(1).mix(0.25), 0.7, 0.9, 2},
    {outer_options(4).fragments(2).overlap_steps(1).mix(1), 1, 0, 2},
};

// An error in a parameter shrinks in local steps (by 1 - kInnerRate), and grows in outer ones by less than 1 + rate (1
// + momentum) < 3. A step rounds numbers below 8 fewer than 16 times, including the world's sum. The 40 steps have
// fewer than 8 outer ones of a fragment that matter before the oldest errors have shrunk as much. So the bound is 40 *
// 16 * 8 u * 3.
TEST(OuterOptimizer, EverySchedulesNumbersAreThoseOfASimulationInFloat64) {
  constexpr double kTolerance = 40 * 16 * 8 * kUnit * 3;
  for (const int64_t world : kOuterWorlds) {
    run_ranks(world, [&](int64_t rank, const auto& group) {
      for (size_t i = 0; i < std::size(kSchedules); ++i) {
        SmallTraining training(rank);
        OuterOptimizer outer(*training.inner, group, kSchedules[i].options);
        Simulation simulation(kSchedules[i], world);
        for (int64_t step = 1; step <= 40; ++step) {
          training.step(outer);
          simulation.step();
          ASSERT_LE((training.flat() - simulation.own(rank)).abs().max().template item<double>(), kTolerance)
              << "schedule " << i << ", " << world << " ranks, step " << step;
          ASSERT_LE((outer.reference() - simulation.reference()).abs().max().template item<double>(), kTolerance)
              << "schedule " << i << ", " << world << " ranks, step " << step;
        }
        EXPECT_TRUE(same_on_all_ranks(group, {outer.reference()}));
      }
    });
  }
}

// PyTorch's test of PeriodicModelAverager, with period 4, warm-ups of 12 to 15 steps and 20 steps. Each parameter holds
// its rank, and becomes the mean of ranks in the steps whose number after the warm-up, counted from 0, is a multiple of
// 4.
TEST(OuterOptimizer, HasTheKnownAnswersOfPyTorchsPeriodicAverager) {
  constexpr int64_t kWorld = 4;
  run_ranks(kWorld, [&](int64_t rank, const auto& group) {
    for (int64_t warmup = 12; warmup < 16; ++warmup) {
      const at::Tensor parameter = at::zeros({3, 5}).requires_grad_();
      torch::optim::SGD still({parameter}, torch::optim::SGDOptions(0));
      OuterOptimizer outer(still, group, outer_options(4).warmup_steps(warmup).first_exchange(1));
      for (int64_t step = 0; step < 20; ++step) {
        EXPECT_EQ(outer.is_warming_up(), step < warmup);
        if (step >= warmup) parameter.detach().fill_(static_cast<double>(rank));
        outer.step();
        const double expected = step < warmup ? 0 : (step - warmup) % 4 == 0 ? 1.5 : static_cast<double>(rank);
        EXPECT_TRUE(at::equal(parameter.detach(), at::full({3, 5}, expected))) << "warm-up " << warmup << " " << step;
      }
    }
  });
}

// With error feedback the ranks' total error of the sum of all differences stays within a code of both hops. Without
// it, each difference adds the same error again.
TEST(OuterOptimizer, ErrorFeedbackKeepsNarrowFormatsOnTheWay) {
  constexpr int64_t kRounds = 60;
  for (const int64_t world : {2, 5}) {
    for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kInt4B32, WireFormat::kVar5}) {
      run_ranks(world, [&](int64_t rank, const auto& group) {
        for (const bool feedback : {true, false}) {
          hooks::WireOptions wire = outer_wire(format);
          wire.error_feedback = feedback;
          const at::Tensor parameter = at::zeros({1000}).requires_grad_();
          parameter.mutable_grad() = seeded_randn(static_cast<uint64_t>(rank), {1000});  // The same in every step.
          torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.25));
          OuterOptimizer outer(sgd, group, OuterOptions().sync_every(2).wire(wire));
          for (int64_t step = 0; step < 2 * kRounds; ++step) outer.step();
          const at::Tensor way = -mean_of(gathered(group, parameter.grad())) * 0.5 * kRounds;
          const double largest = 4;  // About the largest magnitude of the normal numbers.
          // A message of var5 has room for codes of 4 bits in all blocks.
          const double code = largest * 0.5 / (format == WireFormat::kInt8B128 ? 127 : 7);
          const double missing = (outer.reference() - way).abs().max().template item<double>();
          EXPECT_EQ(missing <= 2 * code, feedback)
              << to_string(format) << " " << world << ": " << missing << " " << code;
          EXPECT_TRUE(same_on_all_ranks(group, {parameter}));
        }
      });
    }
  }
}

TEST(OuterOptimizer, ANanOnOneRankCostsItsRoundOnAllRanks) {
  for (const WireFormat format : {WireFormat::kFp32, WireFormat::kInt8B128, WireFormat::kVar5, WireFormat::kTop2P31}) {
    run_ranks(3, [&](int64_t rank, const auto& group) {
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, OuterOptions().sync_every(2).wire(outer_wire(format)));
      training.step(outer);
      training.step(outer);
      const at::Tensor before = outer.reference().clone();
      training.step(outer);
      if (rank == 1) training.parameters[1].detach().fill_(std::numeric_limits<float>::quiet_NaN());
      training.step(outer);
      EXPECT_EQ(outer.lost_exchanges(), 1);
      EXPECT_TRUE(at::equal(outer.reference(), before));
      EXPECT_TRUE(at::equal(training.flat(), before));
      training.step(outer);
      training.step(outer);
      EXPECT_EQ(outer.lost_exchanges(), 1);
      EXPECT_TRUE(outer.reference().isfinite().all().template item<bool>());
      EXPECT_FALSE(at::equal(outer.reference(), before));
      EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
    });
  }
}

// Fragments are issued 3 steps apart, and joined 2 steps later. The end joins the last one.
TEST(OuterOptimizer, SaysHowOldItsNewsIs) {
  run_ranks(2, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, outer_options(6).fragments(2).overlap_steps(2).warmup_steps(1));
    std::vector<int64_t> staleness;
    std::vector<int64_t> joined;
    for (int64_t step = 0; step < 10; ++step) {
      if (outer.is_warming_up()) {
        outer.skip_step();
      } else {
        training.step(outer);
      }
      staleness.push_back(outer.staleness().value_or(-1));
      joined.push_back(outer.joined_exchanges());
    }
    EXPECT_THAT(staleness, ElementsAre(-1, -1, -1, -1, -1, 2, 3, 4, 2, 3));
    EXPECT_THAT(joined, ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 2, 2));
    outer.finish();
    EXPECT_EQ(outer.staleness(), 0);
    EXPECT_EQ(outer.joined_exchanges(), 3);
  });
}

TEST(OuterOptimizer, ARankThatLeavesItsStepOutTakesPartInTheExchange) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    const at::Tensor before = training.flat();
    OuterOptimizer outer(*training.inner, group, outer_options(1));
    training.compute_gradients();
    rank == 1 ? outer.skip_step() : outer.step();
    std::vector<at::Tensor> moved;
    for (int64_t other = 0; other < 3; ++other) {
      const at::Tensor gradient = before - SmallTraining(other).flat_target();
      moved.push_back(other == 1 ? before : before - kInnerRate * gradient);
    }
    EXPECT_LE((training.flat() - mean_of(moved)).abs().max().template item<double>(), 8 * 5 * kUnit);
  });
}

TEST(OuterOptimizer, TheOuterParametersCanBeLookedAtAndAreTheLast) {
  run_ranks(3, [&](int64_t rank, const auto& group) {
    SmallTraining training(rank);
    OuterOptimizer outer(*training.inner, group, outer_options(6).fragments(2).overlap_steps(2));
    for (int64_t step = 0; step < 11; ++step) training.step(outer);  // Nothing is in flight.
    const at::Tensor own = training.flat();
    {
      const OuterOptimizer::OuterParameters look(outer);
      EXPECT_TRUE(at::equal(training.flat(), outer.reference()));
      EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
    }
    EXPECT_TRUE(at::equal(training.flat(), own));
    EXPECT_FALSE(same_on_all_ranks(group, training.parameters));
    for (int64_t step = 11; step < 15; ++step) training.step(outer);  // The first fragment was issued after the last.
    const at::Tensor before = outer.reference().clone();
    at::Tensor seen;
    {
      const OuterOptimizer::OuterParameters look(outer);
      seen = training.flat();
    }
    EXPECT_TRUE(at::equal(outer.reference(), before)) << "a look changes nothing";
    outer.finish();
    EXPECT_FALSE(at::equal(outer.reference(), before)) << "what was under way is joined";
    EXPECT_TRUE(at::equal(seen, outer.reference()));
    EXPECT_TRUE(at::equal(training.flat(), outer.reference()));
    EXPECT_TRUE(outer.replicas_are_equal());
    EXPECT_TRUE(same_on_all_ranks(group, training.parameters));
  });
}

// In the one-shot algorithm a rank sends its message of each fragment to all others.
TEST(OuterOptimizer, CountsTheBytesOfItsFragments) {
  for (const WireFormat format : {WireFormat::kInt4B32, WireFormat::kVar5}) {
    run_ranks(3, [&](int64_t rank, const auto& group) {
      SmallTraining training(rank);
      OuterOptimizer outer(*training.inner, group, OuterOptions().sync_every(4).fragments(2).wire(outer_wire(format)));
      for (int64_t step = 0; step < 8; ++step) training.step(outer);
      EXPECT_EQ(outer.exchanges(), 4);
      EXPECT_EQ(outer.payload_bytes_sent(), 2 * 2 * (encoded_size(26, format) + encoded_size(25, format)));
    });
  }
}

TEST(OuterOptimizer, ParametersOf16BitsFollowAReferenceInFloat32) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_ranks(2, [&](int64_t rank, const auto& group) {
      const at::Tensor parameter = at::ones({100}, dtype).requires_grad_();
      parameter.mutable_grad() = at::full({100}, rank == 0 ? 1.0 : 1.5, dtype);
      torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.25));
      OuterOptimizer outer(sgd, group, outer_options(1));
      outer.step();
      EXPECT_EQ(outer.reference()[0].template item<double>(), 1 - 0.25 * 1.25);
      EXPECT_EQ(parameter[0].template item<double>(), 1 - 0.25 * 1.25) << "has few enough bits for either type";
    });
  }
}

}  // namespace
}  // namespace narrowcast::testing

// Outer steps in sparse formats: SparseLoCo (arXiv 2508.15706).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include <narrowcast/wire_format.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/outer/outer_fixtures.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNumel = 9000;  // Three blocks; the last one is not whole.
constexpr double kRate = 0.5;
constexpr double kStep = 0.25;

OuterOptions sparse_options(const hooks::WireOptions& wire) {
  return OuterOptions().sync_every(1).optimizer(OuterKind::kSgd).learning_rate(kRate).wire(wire);
}

// Rank r moves by the same numbers in each step.
at::Tensor gradient_of(int64_t rank) { return seeded_randn(static_cast<uint64_t>(rank), {kNumel}); }

struct Mover {
  explicit Mover(int64_t rank) {
    parameter.mutable_grad() = gradient_of(rank);
    sgd = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(kStep));
  }
  at::Tensor parameter = at::zeros({kNumel}).requires_grad_();
  std::unique_ptr<torch::optim::SGD> sgd;
};

// All ranks by the paper's algorithm 1: e <- decay e + difference, send Q(e), e <- e - Q(e), and a step with the mean.
class Algorithm {
 public:
  Algorithm(WireFormat format, int64_t world, double decay)
      : format_(format), decay_(decay), reference_(at::zeros({kNumel})) {
    for (int64_t rank = 0; rank < world; ++rank) errors_.push_back(at::zeros({kNumel}));
  }

  void step() {
    at::Tensor sum;
    for (size_t rank = 0; rank < errors_.size(); ++rank) {
      const at::Tensor own = reference_ - gradient_of(static_cast<int64_t>(rank)) * kStep;
      at::Tensor sent = own.neg().add_(reference_);
      if (errors_.size() > 1) {  // A single rank sends nothing.
        sent = sent.add_(errors_[rank].mul_(decay_));
        const at::Tensor decoded = decode(encode(sent, format_), format_, kNumel);
        errors_[rank] = sent - decoded;
        sent = decoded;
      }
      sum = sum.defined() ? sum + sent : sent;
    }
    reference_.sub_(sum / static_cast<double>(errors_.size()), kRate);
  }

  const at::Tensor& reference() const { return reference_; }

 private:
  const WireFormat format_;
  const double decay_;
  std::vector<at::Tensor> errors_;
  at::Tensor reference_;
};

TEST(SparseOuter, IsThePapersAlgorithmBitForBit) {
  for (const int64_t world : {1, 2, 3, 4, 5, 8}) {
    for (const WireFormat format : {WireFormat::kTop2P15, WireFormat::kTop2P31}) {
      run_ranks(world, [&](int64_t rank, const auto& group) {
        Mover mover(rank);
        OuterOptimizer outer(*mover.sgd, group, sparse_options(outer_wire(format)));
        Algorithm algorithm(format, world, 0.95);
        constexpr int64_t kSteps = 7;
        for (int64_t step = 0; step < kSteps; ++step) {
          outer.step();
          algorithm.step();
          ASSERT_TRUE(at::equal(outer.reference(), algorithm.reference())) << world << " ranks, step " << step;
        }
        EXPECT_TRUE(same_on_all_ranks(group, {mover.parameter}));
        EXPECT_EQ(outer.payload_bytes_sent(), kSteps * (world - 1) * encoded_size(kNumel, format));
      });
    }
  }
}

// Without decay, every element arrives in the end: the reference lacks the ranks' residuals only. A residual grows by
// one difference per round until it is sent, so it is at most as large as the number of rounds between two times that
// all elements are sent. 31 per mille are sent in a round.
TEST(SparseOuter, ErrorFeedbackSendsEverything) {
  constexpr int64_t kRounds = 200;
  for (const int64_t node_size : {1, 2}) {
    run_ranks(4, [&](int64_t rank, const auto& group) {
      Mover mover(rank);
      hooks::WireOptions wire = outer_wire(WireFormat::kTop2P31);
      wire.node_size = node_size;
      OuterOptimizer outer(*mover.sgd, group, sparse_options(wire).error_decay(1));
      for (int64_t step = 0; step < kRounds; ++step) outer.step();
      at::Tensor mean = gradient_of(0);
      for (int64_t other = 1; other < 4; ++other) mean += gradient_of(other);
      const at::Tensor way = mean * (-kStep * kRate / 4 * kRounds);
      const auto missing = (outer.reference() - way).norm().template item<double>();
      const auto whole = way.norm().template item<double>();
      EXPECT_LT(missing, 0.4 * whole) << "nodes of " << node_size;
      EXPECT_GT(missing, 0.01 * whole) << "nodes of " << node_size;
      EXPECT_TRUE(same_on_all_ranks(group, {mover.parameter}));
    });
  }
}

// Each fragment's residual decays by the same factor between its exchanges for every number of fragments.
TEST(SparseOuter, FragmentsDecayOncePerRound) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    const auto missing_of = [&](int64_t fragments, double decay) {
      Mover mover(rank);
      OuterOptimizer outer(*mover.sgd, group,
                           sparse_options(outer_wire(WireFormat::kTop2P31))
                               .sync_every(fragments)
                               .fragments(fragments)
                               .error_decay(decay));
      for (int64_t step = 0; step < 40 * fragments; ++step) outer.step();
      return outer.reference().norm().template item<double>() / static_cast<double>(fragments);
    };
    EXPECT_NEAR(missing_of(3, 0.5), missing_of(1, 0.5), 0.1 * missing_of(1, 0.5));
    EXPECT_LT(missing_of(1, 0.5), 0.7 * missing_of(1, 1));
  });
}

TEST(SparseOuter, NeedsErrorFeedbackOnAllRanks) {
  run_ranks(3, [](int64_t rank, const auto& group) {
    Mover mover(rank);
    hooks::WireOptions wire = outer_wire(WireFormat::kTop2P15);
    wire.error_feedback = rank != 1;
    const std::string message =
        error_message<c10::ValueError>([&] { OuterOptimizer(*mover.sgd, group, sparse_options(wire)); });
    EXPECT_THAT(message, HasSubstr("rank 1"));
    EXPECT_THAT(message, HasSubstr("It needs outer_error_feedback"));
  });
}

}  // namespace
}  // namespace narrowcast::testing

// Steps of lists of parameters on all threads.
#include "ops/cpu/optimizer/optimizer_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/optimizer/step_arrays.h"

namespace narrowcast::cpu {
namespace {

using test::expect_same_arrays;
using test::random_arrays;
using test::StepArrays;
using test::UseThreads;

constexpr AdamWHyperparameters kHyperparameters{
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
constexpr SgdHyperparameters kMomentum{
    .learning_rate = 0.01, .weight_decay = 0.1, .momentum = 0.9, .dampening = 0, .nesterov = false};

// Half a unit in the last place of float32, relative, and the error of factors in float64.
constexpr double kFactorError = 0x1.01p-24;

TEST(AdamWFactorsTest, AreRoundedOnce) {
  for (const double beta1 : {0.0, 0.9, 0.95}) {
    for (const double beta2 : {0.5, 0.99, 0.999}) {
      for (const int64_t step : {1, 2, 3, 10, 1000, 1 << 20}) {
        SCOPED_TRACE(::testing::Message() << beta1 << " " << beta2 << " " << step);
        const AdamWHyperparameters p{
            .learning_rate = 3e-3, .beta1 = beta1, .beta2 = beta2, .epsilon = 1e-8, .weight_decay = 0.1};
        const AdamWFactors f = adamw_factors(p, step, 0.3);
        const long double root = std::sqrt(1 - std::pow(static_cast<long double>(beta2), step));
        const long double rate = p.learning_rate * root / (1 - std::pow(static_cast<long double>(beta1), step));
        EXPECT_NEAR(f.rate, static_cast<double>(rate), rate * kFactorError);
        EXPECT_NEAR(f.epsilon, static_cast<double>(1e-8L * root), 1e-8 * root * kFactorError);
        EXPECT_EQ(f.decay, static_cast<float>(3e-3 * 0.1));
        EXPECT_EQ(f.gradient_scale, 0.3F);
        EXPECT_EQ(f.beta1, static_cast<float>(beta1));
        EXPECT_EQ(f.rest_of_beta1, static_cast<float>(1 - beta1));
        EXPECT_EQ(f.beta2, static_cast<float>(beta2));
        EXPECT_EQ(f.rest_of_beta2, static_cast<float>(1 - beta2));
      }
    }
  }
}

TEST(SgdFactorsTest, DampenFromTheSecondStepOn) {
  SgdHyperparameters p = kMomentum;
  p.dampening = 0.25;
  EXPECT_EQ(sgd_factors(p, 1, 1).share, 1);
  EXPECT_EQ(sgd_factors(p, 2, 1).share, 0.75F);
  const SgdFactors f = sgd_factors(p, 2, 0.5);
  EXPECT_EQ(f.gradient_scale, 0.5F);
  EXPECT_EQ(f.rate, 0.01F);
  EXPECT_EQ(f.decay, 0.1F);
  EXPECT_EQ(f.momentum, 0.9F);
  EXPECT_FALSE(f.nesterov);
}

// Parameters of a small model: more elements than a thread needs to start, in arrays of all kinds of sizes.
std::vector<StepArrays> random_parameters() {
  std::vector<StepArrays> parameters;
  for (const int64_t size : {1, 7, 100003, 0, 64, 40000, 129}) parameters.push_back(random_arrays(size));
  return parameters;
}

// Pieces of at most `largest` elements; each parameter has taken another number of steps.
std::vector<AdamWPiece> adamw_pieces(std::vector<StepArrays>& parameters, int64_t largest) {
  std::vector<AdamWPiece> pieces;
  int64_t step = 0;
  for (StepArrays& arrays : parameters) {
    const AdamWFactors factors = adamw_factors(kHyperparameters, ++step, 0.5);
    for (int64_t begin = 0; begin < arrays.size(); begin += largest) {
      pieces.push_back({factors, arrays.adamw(begin, std::min(largest, arrays.size() - begin))});
    }
  }
  return pieces;
}

std::vector<SgdPiece> sgd_pieces(std::vector<StepArrays>& parameters, int64_t largest) {
  std::vector<SgdPiece> pieces;
  int64_t step = 0;
  for (StepArrays& arrays : parameters) {
    step = step % 2 + 1;
    for (int64_t begin = 0; begin < arrays.size(); begin += largest) {
      pieces.push_back(
          {sgd_factors(kMomentum, step, 0.5), arrays.sgd(begin, std::min(largest, arrays.size() - begin))});
    }
  }
  return pieces;
}

void step_alone(const AdamWPiece& piece) { step_adamw(piece.factors, piece.arrays); }

void step_alone(const SgdPiece& piece) { step_sgd(piece.factors, piece.arrays); }

template <class MakePieces>
void expect_equal_bits_for_all_divisions(const MakePieces& make_pieces) {
  const std::vector<StepArrays> before = random_parameters();
  std::vector<StepArrays> expected = before;
  for (const auto& piece : make_pieces(expected, int64_t{1} << 30)) step_alone(piece);
  EXPECT_NE(expected.at(2).parameters, before.at(2).parameters);
  for (const int threads : {1, 2, 3, 7}) {
    const UseThreads use(threads);
    for (const int64_t largest : {int64_t{1} << 30, int64_t{40000}, int64_t{4096}, int64_t{1001}, int64_t{7}}) {
      SCOPED_TRACE(::testing::Message() << threads << " threads, pieces of " << largest);
      std::vector<StepArrays> actual = before;
      step_pieces(make_pieces(actual, largest));
      for (size_t i = 0; i < actual.size(); ++i) expect_same_arrays(actual[i], expected[i]);
    }
  }
}

TEST(StepPieces, OfAdamWHaveEqualBitsForAllThreadsAndPieces) { expect_equal_bits_for_all_divisions(adamw_pieces); }

TEST(StepPieces, OfSgdHaveEqualBitsForAllThreadsAndPieces) { expect_equal_bits_for_all_divisions(sgd_pieces); }

TEST(StepPieces, WithoutPiecesDoNothing) {
  step_pieces(std::vector<AdamWPiece>());
  step_pieces(std::vector<SgdPiece>());
}

TEST(StepPieces, OfSgdWithoutMomentumNeedNoMomenta) {
  std::vector<StepArrays> parameters = random_parameters();
  std::vector<SgdPiece> pieces = sgd_pieces(parameters, 1001);
  for (SgdPiece& piece : pieces) piece.arrays.momenta = nullptr;
  const StepArrays before = parameters.at(2);
  const UseThreads use(3);
  step_pieces(pieces);
  EXPECT_NE(parameters.at(2).parameters, before.parameters);
  EXPECT_EQ(parameters.at(2).first, before.first);
}

}  // namespace
}  // namespace narrowcast::cpu

#include "ops/collectives/power_sgd/low_rank.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace narrowcast::collectives {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> draws_of(uint32_t seed, int64_t count, int64_t before = 0) {
  SeedDraws draws(seed, before);
  std::vector<int64_t> seeds;
  for (int64_t i = 0; i < count; ++i) seeds.push_back(draws.next());
  EXPECT_EQ(draws.count(), before + count);
  return seeds;
}

// Values from numpy 2.4.6.
TEST(SeedDraws, AreThoseOfNumpy) {
  EXPECT_THAT(draws_of(0, 6), ElementsAre(209652396, 398764591, 924231285, 404868288, 441365315, 463622907));
  EXPECT_THAT(draws_of(1, 6), ElementsAre(717354021, 946286476, 784077896, 491263, 550290313, 224766667));
  EXPECT_THAT(draws_of(42, 6), ElementsAre(534895718, 199900595, 862061404, 787846414, 996406378, 127521863));
  EXPECT_THAT(draws_of(42, 2, /*before=*/3), ElementsAre(787846414, 996406378)) << "after a restart";
}

TEST(NormalNumbers, AreThoseOfTheGlobalGenerator) {
  at::manual_seed(209652396);
  const at::Tensor first = at::randn({1, 5, 2});
  const at::Tensor second = at::randn({1, 300, 2});
  NormalNumbers numbers(209652396, LowRankBits::kOfPyTorch);
  const at::Tensor mine = at::empty({1, 5, 2});
  numbers.fill(mine);
  EXPECT_TRUE(at::equal(mine, first));
  const at::Tensor next = at::empty({1, 300, 2});
  numbers.fill(next);
  EXPECT_TRUE(at::equal(next, second)) << "small arrays leave a number in the generator";
}

// Values from an implementation of the 64-bit Mersenne Twister in Python.
TEST(NormalNumbers, AreTheSameOnEveryCpu) {
  const at::Tensor expected = at::tensor({146126, 115716, 3905, 45938, 39572, -94177}, at::kDouble) / 65536;
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    NormalNumbers numbers(209652396, LowRankBits::kOfAnyMachine);
    const at::Tensor first = at::empty({1, 2, 2}, dtype);
    numbers.fill(first);
    const at::Tensor second = at::empty({2, 1}, dtype);
    numbers.fill(second);
    EXPECT_TRUE(at::equal(at::cat({first.flatten(), second.flatten()}).to(at::kDouble), expected)) << dtype;
  }
}

TEST(NormalNumbers, AreNearlyNormal) {
  constexpr int64_t kCount = 200'000;
  const at::Tensor numbers = at::empty({kCount}, at::kDouble);
  NormalNumbers(1, LowRankBits::kOfAnyMachine).fill(numbers);
  const double error = 5 / std::sqrt(static_cast<double>(kCount));  // Five standard deviations of the mean.
  EXPECT_NEAR(numbers.mean().item<double>(), 0, error);
  EXPECT_NEAR(numbers.square().mean().item<double>(), 1, error * std::sqrt(2));
  EXPECT_NEAR(numbers.abs().lt(1).to(at::kDouble).mean().item<double>(), 0.6827, error + 0.01);
  EXPECT_GT(numbers.abs().max().item<double>(), 3.5);
}

class Orthogonalize : public ::testing::TestWithParam<LowRankBits> {};

TEST_P(Orthogonalize, MakesColumnsOrthonormalInTheSameSpan) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t rank : {1, 2, 3, 8}) {
      const at::Tensor before = at::randn({3, 50, rank}, dtype);
      const at::Tensor columns = before.clone();
      orthogonalize(columns, 0, GetParam());
      const double unit = dtype == at::kFloat ? 0x1p-23 : 0x1p-52;
      const at::Tensor gram = at::bmm(columns.transpose(1, 2), columns);
      // 50 products, and the rounding of the columns.
      EXPECT_LE((gram - at::eye(rank, dtype)).abs().max().item<double>(), 50 * unit);
      const at::Tensor projected = at::bmm(columns, at::bmm(columns.transpose(1, 2), before));
      EXPECT_LE((projected - before).abs().max().item<double>(), 200 * unit);
    }
  }
}

TEST_P(Orthogonalize, LeavesColumnsOfZeros) {
  const at::Tensor zeros = at::zeros({1, 10, 2});
  orthogonalize(zeros, 0, GetParam());
  EXPECT_TRUE(at::equal(zeros, at::zeros({1, 10, 2})));
  const at::Tensor one = at::zeros({1, 10, 2});
  one.select(2, 1).fill_(2);
  orthogonalize(one, 0, GetParam());
  EXPECT_EQ(one.select(2, 0).abs().max().item<float>(), 0);
  EXPECT_NEAR(one.select(2, 1).norm().item<double>(), 1, 1e-6);
}

TEST_P(Orthogonalize, AddsEpsilonToTheNorm) {
  const at::Tensor column = at::zeros({1, 2, 1});
  column[0][0][0] = 3;
  column[0][1][0] = 4;
  orthogonalize(column, 5, GetParam());
  EXPECT_FLOAT_EQ(column[0][0][0].item<float>(), 0.3F);
}

INSTANTIATE_TEST_SUITE_P(Bits, Orthogonalize, ::testing::Values(LowRankBits::kOfAnyMachine, LowRankBits::kOfPyTorch),
                         [](const auto& info) {
                           return info.param == LowRankBits::kOfPyTorch ? "OfPyTorch" : "OfAnyMachine";
                         });

// One pass of Gram-Schmidt leaves the second column up to 1 / sqrt(n) parallel to the first.
TEST(OrthogonalizeOnAnyMachine, MakesWhatIsRoundingAloneOrthogonal) {
  at::manual_seed(1);
  const at::Tensor u = at::randn({400, 1});
  const at::Tensor nearly_dependent = at::cat({u, u * 3.7F + at::randn({400, 1}) * 1e-7F}, 1).unsqueeze(0);
  orthogonalize(nearly_dependent, 0, LowRankBits::kOfAnyMachine);
  const at::Tensor columns = nearly_dependent[0];
  EXPECT_LE(std::abs((columns.select(1, 0) * columns.select(1, 1)).sum().item<double>()), 1e-6);
  EXPECT_NEAR(columns.select(1, 1).norm().item<double>(), 1, 1e-6);
}

TEST(OrthogonalizeOnAnyMachine, DropsColumnsThatCannotBe) {
  const at::Tensor columns = at::zeros({1, 3, 3});
  columns.narrow(1, 0, 2).fill_(1);  // Two rows, the rest zeros, and one direction: rank 1.
  orthogonalize(columns, 0, LowRankBits::kOfAnyMachine);
  EXPECT_NEAR(columns[0][0][0].item<double>(), std::sqrt(0.5), 1e-6);
  EXPECT_EQ(columns.narrow(2, 1, 2).abs().max().item<float>(), 0);
}

TEST(HasZeroColumn, LooksAtEveryMatrix) {
  const at::Tensor matrices = at::ones({2, 4, 3});
  EXPECT_FALSE(has_zero_column(matrices));
  matrices[1].select(1, 2).zero_();
  EXPECT_TRUE(has_zero_column(matrices));
}

TEST(MultiplyByFactor, IsTheProductOfTransposedViewsToo) {
  at::manual_seed(1);
  for (const LowRankBits bits : {LowRankBits::kOfAnyMachine, LowRankBits::kOfPyTorch}) {
    for (const int64_t rank : {1, 2, 5}) {
      const at::Tensor x = at::randn({3, 70, 90}, at::kDouble);
      const at::Tensor of_columns = at::randn({3, 90, rank}, at::kDouble);
      const at::Tensor of_rows = at::randn({3, 70, rank}, at::kDouble);
      const at::Tensor p = at::empty({3, 70, rank}, at::kDouble);
      multiply_by_factor(x, of_columns, bits, p);
      EXPECT_TRUE(at::allclose(p, at::matmul(x, of_columns)));
      const at::Tensor q = at::empty({3, 90, rank}, at::kDouble);
      multiply_by_factor(x.transpose(1, 2), of_rows, bits, q);
      EXPECT_TRUE(at::allclose(q, at::matmul(x.transpose(1, 2), of_rows)));
    }
  }
}

struct OneRank {
  at::Tensor matrix, p, own, mean;
};

OneRank random_rank(int64_t rows, int64_t columns, int64_t rank) {
  return {at::randn({rows, columns}), at::randn({rows, rank}), at::randn({columns, rank}), at::randn({columns, rank})};
}

TEST(ReplaceByMean, IsProductAndRemainder) {
  at::manual_seed(1);
  for (const int64_t rank : {1, 2, 3, 8}) {
    const OneRank of = random_rank(37, 2500, rank);
    const at::Tensor matrix = of.matrix.clone();
    const at::Tensor residual = at::zeros_like(matrix);
    replace_by_mean({matrix, residual, {of.p, of.own}, {of.p, of.mean}});
    const at::Tensor product = at::empty({1, 37, 2500});
    multiply_factors(of.p.unsqueeze(0), of.mean.unsqueeze(0), LowRankBits::kOfAnyMachine, product);
    EXPECT_TRUE(at::equal(matrix, product[0])) << "the same bits with and without residuals";
    const at::Tensor exact = at::mm(of.p.to(at::kDouble), of.mean.to(at::kDouble).t());
    const double tolerance = rank * 0x1p-24 * exact.abs().max().item<double>() * 4;
    EXPECT_LE((matrix - exact).abs().max().item<double>(), tolerance);
    const at::Tensor rest = of.matrix.to(at::kDouble) - at::mm(of.p.to(at::kDouble), of.own.to(at::kDouble).t());
    EXPECT_LE((residual - rest).abs().max().item<double>(), rank * 0x1p-24 * rest.abs().max().item<double>() * 4);
  }
}

TEST(ReplaceByMean, HasTheSameBitsWithMoreThreads) {
  at::manual_seed(1);
  const OneRank of = random_rank(300, 700, 2);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const at::Tensor matrix = of.matrix.clone();
    const at::Tensor residual = at::zeros_like(matrix);
    const at::Tensor p = of.p.clone().unsqueeze(0);
    orthogonalize(p, 0, LowRankBits::kOfAnyMachine);
    replace_by_mean({matrix, residual, {p[0], of.own}, {p[0], of.mean}});
    results.push_back(at::cat({matrix, residual}));
    EXPECT_TRUE(at::equal(results.back(), results[0]));
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace narrowcast::collectives

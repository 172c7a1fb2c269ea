#include "trainer/ddp/optimization/newton_schulz.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <narrowcast/muon.h>
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "tests/trainer/ddp/optimization/small_muon_model.h"

namespace narrowcast::optim {
namespace {

using testing::seeded_randn;

// The five iterations move singular values of 1/50 of the norm or more to 0.65..1.25. bfloat16 has 8 bits.
TEST(NewtonSchulz, MakesSingularValuesNearlyOne) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{32, 100}, {100, 32}, {40, 20}, {1, 7}, {7, 1}}) {
      const at::Tensor u = seeded_randn(3, sizes);
      const at::Tensor orthogonal = orthogonalized(u, MuonOptions().ns_dtype(dtype));
      EXPECT_EQ(orthogonal.scalar_type(), dtype);
      ASSERT_EQ(orthogonal.sizes(), u.sizes());
      const at::Tensor values = at::linalg_svdvals(orthogonal.to(at::kDouble));
      EXPECT_GT(values.min().item<double>(), 0.65) << u.sizes() << " " << dtype;
      EXPECT_LT(values.max().item<double>(), 1.25) << u.sizes() << " " << dtype;
      // The singular vectors stay: U^T V is diagonal.
      const auto [left, singular, right] = at::linalg_svd(u.to(at::kDouble), /*full_matrices=*/false);
      const at::Tensor diagonal = at::matmul(at::matmul(left.t(), orthogonal.to(at::kDouble)), right.t());
      const at::Tensor rest = diagonal - at::diag(diagonal.diagonal());
      EXPECT_LT(rest.abs().max().item<double>(), dtype == at::kFloat ? 1e-4 : 0.1) << u.sizes();
    }
  }
}

// The iterations in the comment of Muon, in float64.
at::Tensor iterated(const at::Tensor& u, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  at::Tensor x = u.to(at::kDouble);
  x = x / std::max(x.norm().item<double>(), options.eps());
  for (int64_t step = 0; step < options.ns_steps(); ++step) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = a * x + at::matmul(b * gram + c * at::matmul(gram, gram), x);
  }
  return x;
}

// float32 differs from float64 by its rounding errors only.
TEST(NewtonSchulz, IsTheIterationInTheCommentOfMuon) {
  const at::Tensor u = seeded_randn(4, {12, 30});
  const MuonOptions usual = in_float32();
  EXPECT_EQ(usual.ns_coefficients(), (MuonOptions::Coefficients{3.4445, -4.7750, 2.0315}));
  EXPECT_EQ(usual.ns_steps(), 5);
  const MuonOptions cubic = in_float32().ns_coefficients({1.5, -0.5, 0}).ns_steps(2);
  for (const MuonOptions& options : {usual, cubic}) {
    const at::Tensor expected = iterated(u, options);
    EXPECT_LT((orthogonalized(u, options) - expected).abs().max().item<double>(), 1e-5);
    EXPECT_LT((orthogonalized(u.t(), options).t() - expected).abs().max().item<double>(), 1e-5) << "transposed";
  }
}

// For m > n the smaller Gram matrix is taken, and it would be another rounding otherwise.
TEST(NewtonSchulz, ATallMatrixHasTheBitsOfItsTranspose) {
  const at::Tensor wide = seeded_randn(5, {9, 33});
  const at::Tensor tall = wide.t().contiguous();
  EXPECT_TRUE(at::equal(orthogonalized(tall, in_float32()), orthogonalized(tall.t(), in_float32()).t()));
}

TEST(NewtonSchulz, DividesByEpsAtLeast) {
  const at::Tensor zeros = orthogonalized(at::zeros({3, 5}), in_float32());
  EXPECT_TRUE(at::equal(zeros, at::zeros({3, 5})));
  const at::Tensor tiny = seeded_randn(6, {3, 5}) * 1e-13;  // Its norm is below eps.
  const at::Tensor expected = iterated(tiny, in_float32());
  EXPECT_LT(at::linalg_svdvals(expected).max().item<double>(), 0.1) << "it was divided by its norm";
  EXPECT_TRUE(at::allclose(orthogonalized(tiny, in_float32()).to(at::kDouble), expected, 1e-4, 1e-7));
}

// An update without momentum is the buffer itself.
TEST(NewtonSchulz, LeavesItsArgumentAsItIs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor u = seeded_randn(7, {4, 6}).to(dtype);
    const at::Tensor before = u.clone();
    orthogonalized(u, MuonOptions().ns_dtype(dtype));
    EXPECT_TRUE(at::equal(u, before)) << dtype;
  }
}

TEST(NewtonSchulz, HasTheCostOfItsProducts) {
  // X X^T, A A and the product with X: 2 * 10 * 10 * 30, 2 * 10^3 and 2 * 10 * 10 * 30.
  EXPECT_EQ(orthogonalization_cost({10, 30}, 1), 6000 + 2000 + 6000);
  EXPECT_EQ(orthogonalization_cost({30, 10}, 5), 5 * 14000);
}

TEST(NewtonSchulz, UsesTheDtypeThatTheDeviceMultipliesFast) {
  EXPECT_EQ(native_ns_dtype(at::kCUDA), at::kBFloat16);
  const at::ScalarType of_cpu = native_ns_dtype(at::kCPU);
  EXPECT_EQ(orthogonalized(seeded_randn(1, {4, 4}), MuonOptions()).scalar_type(), of_cpu);
}

}  // namespace
}  // namespace narrowcast::optim

// The arithmetic of PowerSGD on the CPU, for float32 and float64: random matrices, orthonormal columns, products with
// narrow matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

#include <narrowcast/export.h>

namespace narrowcast::collectives {

// The seeds that PyTorch's hook draws: numpy.random.RandomState(seed).randint(1'000'000'000), call after call.
class NARROWCAST_EXPORT SeedDraws {
 public:
  // Continues after `count` draws.
  explicit SeedDraws(uint32_t seed, int64_t count = 0);

  int64_t next();
  int64_t count() const { return count_; }

 private:
  std::mt19937 generator_;
  int64_t count_ = 0;
};

// The implementation whose bits the arithmetic reproduces.
enum class LowRankBits {
  // The same bits on every CPU and for any number of threads, so that ranks that begin with equal numbers end with
  // equal ones. Sums have a fixed order; each product and each sum is rounded separately.
  kOfAnyMachine,
  // PyTorch's bits on this machine, from the functions of ATen that its hook uses.
  kOfPyTorch,
};

// With kOfPyTorch, matrices with at least this many columns are orthonormalised by a QR decomposition.
constexpr int64_t kQrRank = 3;

// The share of a column's norm that must remain after the projection on others is subtracted. If less remains, it may
// be only rounding error.
constexpr double kKeepsOfNorm = 0.5;

// Random numbers of mean 0 and variance 1, for one tensor after the other.
//   kOfAnyMachine: nearly normal, from integers only: (sum of twelve uniform 16-bit numbers - mean of the sum) / 2^16,
//                  from std::mt19937_64. Float32 and float64 tensors get the same numbers.
//   kOfPyTorch:    normal, as torch.randn draws them on the CPU after torch.manual_seed. CPUs with and without AVX2
//                  differ in the last bits.
class NormalNumbers {
 public:
  NormalNumbers(int64_t seed, LowRankBits bits);
  // The tensor is contiguous.
  void fill(const at::Tensor& tensor);

 private:
  const LowRankBits bits_;
  at::Generator of_pytorch_;
  std::mt19937_64 of_any_machine_;
};

// Makes the columns of each of matrices [k, n, r], r <= n, orthonormal, in place. Each column is divided by its norm
// plus `epsilon`. A column of norm 0 becomes 0.
//   kOfAnyMachine: Gram-Schmidt in float64, repeated until a column keeps its norm. A column that still lies in the
//                  span of the columns before it after several passes becomes 0.
//   kOfPyTorch:    Gram-Schmidt once for r < kQrRank, else Householder's QR decomposition (LAPACK), which ignores
//                  epsilon.
void orthogonalize(const at::Tensor& matrices, double epsilon, LowRankBits bits);

// Whether any column of any of the matrices [k, n, r] is zero.
bool has_zero_column(const at::Tensor& matrices);

// result [k, n, r] = X [k, n, m] times F [k, m, r]. The bits may depend on the machine: ranks apply it only to their
// own numbers, and exchange the results. X may be a transposed view.
//   kOfAnyMachine: as F^T X^T, which MKL computes up to 50 times as fast as X F for a narrow F.
//   kOfPyTorch:    as X F.
void multiply_by_factor(const at::Tensor& x, const at::Tensor& factor, LowRankBits bits, const at::Tensor& result);

// result [k, n, m] = P [k, n, r] times Q [k, m, r] transposed. Result may have a different stride between matrices.
//   kOfAnyMachine: ((p_0 q_0 + p_1 q_1) + p_2 q_2) + ...
void multiply_factors(const at::Tensor& p, const at::Tensor& q, LowRankBits bits, const at::Tensor& result);

// The product of P [n, r] and Q [m, r] transposed, both contiguous.
struct LowRankProduct {
  at::Tensor p;
  at::Tensor q;
};

// One rank's matrix during a step, [n, m], contiguous.
struct LowRankMatrix {
  at::Tensor matrix;    // input: this rank's matrix; output: the product `mean`
  at::Tensor residual;  // output: the input matrix minus the product `own`
  LowRankProduct own;   // of the factors that this rank sent
  LowRankProduct mean;  // of the factors that all ranks hold
};

// Computes both products in one pass over memory, with the bits of kOfAnyMachine.
void replace_by_mean(const LowRankMatrix& of);

}  // namespace narrowcast::collectives

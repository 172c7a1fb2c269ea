// The arithmetic of PowerSGD: random matrices, orthogonal columns, products with narrow matrices. On the CPU, of
// float32 and float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

#include <narrowcast/export.h>

namespace narrowcast::collectives {

// The seeds that PyTorch's hook draws: numpy.random.RandomState(seed).randint(1'000'000'000), call after call.
class NARROWCAST_EXPORT SeedDraws {
 public:
  // Begins where `count` draws were made before.
  explicit SeedDraws(uint32_t seed, int64_t count = 0);

  int64_t next();
  int64_t count() const { return count_; }

 private:
  std::mt19937 generator_;
  int64_t count_ = 0;
};

// Whose bits the arithmetic has.
enum class LowRankBits {
  // The same on every CPU and for any number of threads, so that ranks that begin with equal numbers end with equal
  // ones: sums in a fixed order, products and sums rounded one after the other.
  kOfAnyMachine,
  // PyTorch's on this machine, by the functions of ATen that its hook uses.
  kOfPyTorch,
};

// The least rank from which on kOfPyTorch makes columns orthonormal by a QR decomposition.
constexpr int64_t kQrRank = 3;

// So much of a column's norm must stay when what it has of others is subtracted, or the rest may be rounding alone.
constexpr double kKeepsOfNorm = 0.5;

// Random numbers of mean 0 and variance 1, one tensor after the other.
//   kOfAnyMachine: nearly normal, by integers alone: the sum of twelve uniform numbers of 16 bits from
//                  std::mt19937_64, less its mean, by 2^16. Float32 and float64 tensors get the same ones.
//   kOfPyTorch:    normal, as torch.randn draws them on the CPU after torch.manual_seed; CPUs with AVX2 and without it
//                  differ in last bits.
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

// Makes the columns of each of matrices [k, n, r], r <= n, orthonormal, in place. A column's norm is increased by
// `epsilon` before it divides. A column of norm 0 becomes 0, and so does one that lies in the span of those before it
// even after it was made orthogonal to them several times.
//   kOfAnyMachine: Gram-Schmidt in float64, again until a column stays what it is.
//   kOfPyTorch:    Gram-Schmidt once for r < kQrRank, else Householder's QR decomposition (LAPACK): it knows no
//                  epsilon.
void orthogonalize(const at::Tensor& matrices, double epsilon, LowRankBits bits);

// Whether a column of one of matrices [k, n, r] is zero.
bool has_zero_column(const at::Tensor& matrices);

// result [k, n, r] = X [k, n, m] times F [k, m, r]. Its bits may depend on the machine: what ranks make so of their own
// numbers they send each other. X may be a transposed view.
//   kOfAnyMachine: as F^T X^T, which MKL computes up to 50 times as fast as X F where F is narrow.
//   kOfPyTorch:    as X F.
void multiply_by_factor(const at::Tensor& x, const at::Tensor& factor, LowRankBits bits, const at::Tensor& result);

// result [k, n, m] = P [k, n, r] times Q [k, m, r] transposed. Result may have other strides between its matrices.
//   kOfAnyMachine: ((p_0 q_0 + p_1 q_1) + p_2 q_2) + ...
void multiply_factors(const at::Tensor& p, const at::Tensor& q, LowRankBits bits, const at::Tensor& result);

// A matrix as the product of P [n, r] and Q [m, r] transposed, both contiguous.
struct LowRankProduct {
  at::Tensor p;
  at::Tensor q;
};

// A matrix of one rank on its way, [n, m], contiguous.
struct LowRankMatrix {
  at::Tensor matrix;    // what this rank had of the sum over ranks; becomes the product `mean`
  at::Tensor residual;  // becomes the matrix minus the product `own`
  LowRankProduct own;   // of what this rank sent
  LowRankProduct mean;  // of what all have
};

// Both products in one pass over memory, with the bits of kOfAnyMachine.
void replace_by_mean(const LowRankMatrix& of);

// On tensors of any device, by functions of ATen that wait for nothing: what they do depends on no number that the host
// would have to read. stream_low_rank.cpp has them.

// Makes the columns of each of matrices [k, n, r], r <= n, orthonormal, in place. A column's norm is increased by
// `epsilon` before it divides. A column of norm 0 becomes that of `spare`, of the same sizes, made orthogonal to those
// before it or, without a spare, 0. So does, but for kOfPyTorch with r <= 2, one of which, made orthogonal to those
// before it, nothing is left but rounding within their span; rounding that leads out of it is kept, as a direction.
//   kOfAnyMachine: Gram-Schmidt in float64, three times over each column. The same bits on devices of one kind.
//   kOfPyTorch:    as orthogonalize for r <= 2, else as kOfAnyMachine: a QR decomposition would wait.
void orthogonalize_on_stream(const at::Tensor& matrices, double epsilon, LowRankBits bits,
                             const at::Tensor& spare = {});

// The same numbers on `device`. From the CPU to a GPU by pinned memory, so that the host waits for no stream.
at::Tensor on_device(const at::Tensor& numbers, at::Device device);

}  // namespace narrowcast::collectives

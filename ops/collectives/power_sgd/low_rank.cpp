#include "ops/collectives/power_sgd/low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/collectives/all_reduce/array/element_range.h"

namespace narrowcast::collectives {
namespace {

constexpr uint32_t kMask = 0x3FFFFFFF;  // The smallest 2^k - 1 that is at least the greatest seed.
constexpr uint32_t kGreatestSeed = 999'999'999;

constexpr int64_t kLanes = 8;        // Partial sums of a dot product, added at the end.
constexpr int64_t kTile = 1024;      // Elements of a row that fit into the L1 cache.
constexpr int64_t kGrain = 1 << 16;  // Elements that are worth a second thread.
constexpr int kMostPasses = 4;       // Most passes of Gram-Schmidt over a column.

template <class Body>
void dispatch(const at::Tensor& tensor, const Body& body) {
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "low_rank", [&] { body(scalar_t()); });
}

// The variance of 12 uniform numbers is 12 times a twelfth of their range squared. The arithmetic is exact.
double nearly_normal(std::mt19937_64& generator) {
  constexpr int kWords = 3;
  constexpr int kBits = 16;
  constexpr int64_t kGreatest = (1 << kBits) - 1;
  int64_t sum = -kWords * (64 / kBits) * kGreatest / 2;
  for (int i = 0; i < kWords; ++i) {
    for (uint64_t rest = generator(), part = 0; part < 64 / kBits; ++part, rest >>= kBits) {
      sum += static_cast<int64_t>(rest & kGreatest);
    }
  }
  return static_cast<double>(sum) / (1 << kBits);
}

double dot(const double* x, const double* y, int64_t n) {
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += x[i + lane] * y[i + lane];
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    sums[lane] += x[i] * y[i];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Columns of one matrix, in float64, each contiguous.
class Columns {
 public:
  Columns(int64_t rows, int64_t count) : rows_(rows), count_(count), numbers_(rows * count) {}

  template <class T>
  void orthogonalize(T* matrix, double epsilon) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < count_; ++column) at(column)[row] = matrix[row * count_ + column];
    }
    for (int64_t column = 0; column < count_; ++column) {
      orthogonalize_column(column, epsilon);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < count_; ++column) {
        matrix[row * count_ + column] = static_cast<T>(at(column)[row]);
      }
    }
  }

 private:
  double* at(int64_t column) { return numbers_.data() + column * rows_; }
  double norm_of(int64_t column) { return std::sqrt(dot(at(column), at(column), rows_)); }

  // Subtracts the column's projection on the columns before it. If the column lies nearly in their span, most of the
  // remainder is rounding error that lies in the span again. So the subtraction is repeated while it removes much of
  // the norm.
  void orthogonalize_column(int64_t column, double epsilon) {
    double before = norm_of(column);
    double norm = before;
    for (int pass = 0; pass < kMostPasses && column > 0 && before > 0; ++pass) {
      for (int64_t other = 0; other < column; ++other) {
        subtract(column, other);
      }
      norm = norm_of(column);
      if (norm > kKeepsOfNorm * before) break;
      before = pass + 1 < kMostPasses ? norm : 0;
      norm = before;
    }
    const double divisor = norm + epsilon;
    for (int64_t row = 0; row < rows_; ++row) {
      at(column)[row] = norm == 0 ? 0 : at(column)[row] / divisor;
    }
  }

  void subtract(int64_t column, int64_t other) {
    const double* const unit = at(other);
    double* const x = at(column);
    const double part = dot(x, unit, rows_);
    for (int64_t row = 0; row < rows_; ++row) x[row] -= part * unit[row];
  }

  const int64_t rows_;
  const int64_t count_;
  std::vector<double> numbers_;
};

void orthogonalize_on_any_machine(const at::Tensor& matrices, double epsilon) {
  Columns columns(matrices.size(1), matrices.size(2));
  dispatch(matrices, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < matrices.size(0); ++i) {
      columns.orthogonalize(matrices[i].mutable_data_ptr<T>(), epsilon);
    }
  });
}

void orthogonalize_as_pytorch(const at::Tensor& matrices, double epsilon) {
  const int64_t rank = matrices.size(2);
  if (rank >= kQrRank) {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  for (int64_t i = 0; i < rank; ++i) {
    const at::Tensor column = matrices.narrow(2, i, 1);
    const at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    column.masked_fill_(norm == 0, 0);
    if (i + 1 < rank) {
      const at::Tensor rest = matrices.narrow(2, i + 1, rank - i - 1);
      rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
    }
  }
}

// The factors of a product.
template <class T>
struct Factors {
  const T* p;  // [n, r]
  const T* q;  // [r, m]: transposed
  int64_t rank;
  int64_t columns;
};

// tile[j] = sum over k of p[row, k] q[k, begin + j].
template <class T>
void multiply_tile(const Factors<T>& of, int64_t row, const ElementRange& range, T* tile) {
  const T* const p = of.p + row * of.rank;
  const T* q = of.q + range.begin;
  for (int64_t j = 0; j < range.numel; ++j) tile[j] = p[0] * q[j];
  for (int64_t k = 1; k < of.rank; ++k) {
    q += of.columns;
    for (int64_t j = 0; j < range.numel; ++j) tile[j] += p[k] * q[j];
  }
}

// Calls body(row, range of columns) for all tiles of an n x m matrix, on ATen's threads.
template <class Body>
void for_tiles(int64_t rows, int64_t columns, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < columns; column += kTile) {
        body(row, ElementRange{column, std::min(kTile, columns - column)});
      }
    }
  });
}

}  // namespace

SeedDraws::SeedDraws(uint32_t seed, int64_t count) : generator_(seed) {
  while (count_ < count) next();
}

int64_t SeedDraws::next() {
  ++count_;
  for (;;) {
    const auto value = static_cast<uint32_t>(generator_()) & kMask;
    if (value <= kGreatestSeed) return value;
  }
}

NormalNumbers::NormalNumbers(int64_t seed, LowRankBits bits)
    : bits_(bits),
      of_pytorch_(at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed))),
      of_any_machine_(static_cast<uint64_t>(seed)) {}

void NormalNumbers::fill(const at::Tensor& tensor) {
  if (bits_ == LowRankBits::kOfPyTorch) {
    tensor.normal_(0, 1, of_pytorch_);
    return;
  }
  dispatch(tensor, [&](auto zero) {
    using T = decltype(zero);
    std::generate_n(tensor.mutable_data_ptr<T>(), tensor.numel(),
                    [&] { return static_cast<T>(nearly_normal(of_any_machine_)); });
  });
}

void orthogonalize(const at::Tensor& matrices, double epsilon, LowRankBits bits) {
  if (bits == LowRankBits::kOfPyTorch) {
    orthogonalize_as_pytorch(matrices, epsilon);
  } else {
    orthogonalize_on_any_machine(matrices, epsilon);
  }
}

bool has_zero_column(const at::Tensor& matrices) {
  return matrices.ne(0).any(/*dim=*/1).logical_not().any().item<bool>();
}

void multiply_by_factor(const at::Tensor& x, const at::Tensor& factor, LowRankBits bits, const at::Tensor& result) {
  at::Tensor out = result;
  if (bits == LowRankBits::kOfPyTorch) {
    at::bmm_out(out, x, factor);
  } else {
    out.copy_(at::bmm(factor.transpose(1, 2).contiguous(), x.transpose(1, 2)).transpose(1, 2));
  }
}

void multiply_factors(const at::Tensor& p, const at::Tensor& q, LowRankBits bits, const at::Tensor& result) {
  if (bits == LowRankBits::kOfPyTorch) {
    at::Tensor out = result;
    at::bmm_out(out, p, q.transpose(1, 2));
    return;
  }
  for (int64_t i = 0; i < p.size(0); ++i) {
    const at::Tensor transposed = q[i].t().contiguous();
    dispatch(p, [&](auto zero) {
      using T = decltype(zero);
      const Factors<T> factors{p[i].const_data_ptr<T>(), transposed.const_data_ptr<T>(), p.size(2), q.size(1)};
      T* const out = result[i].mutable_data_ptr<T>();
      for_tiles(p.size(1), q.size(1), [&](int64_t row, const ElementRange& range) {
        multiply_tile(factors, row, range, out + row * factors.columns + range.begin);
      });
    });
  }
}

void replace_by_mean(const LowRankMatrix& of) {
  const at::Tensor own = of.own.q.t().contiguous();
  const at::Tensor mean = of.mean.q.t().contiguous();
  const int64_t rank = of.own.p.size(1);
  const int64_t columns = of.matrix.size(1);
  dispatch(of.matrix, [&](auto zero) {
    using T = decltype(zero);
    const Factors<T> own_factors{of.own.p.const_data_ptr<T>(), own.const_data_ptr<T>(), rank, columns};
    const Factors<T> mean_factors{of.mean.p.const_data_ptr<T>(), mean.const_data_ptr<T>(), rank, columns};
    T* const matrix = of.matrix.mutable_data_ptr<T>();
    T* const residual = of.residual.mutable_data_ptr<T>();
    for_tiles(of.matrix.size(0), columns, [&](int64_t row, const ElementRange& range) {
      std::array<T, kTile> sent;
      multiply_tile(own_factors, row, range, sent.data());
      T* const m = matrix + row * columns + range.begin;
      T* const e = residual + row * columns + range.begin;
      for (int64_t j = 0; j < range.numel; ++j) e[j] = m[j] - sent[j];
      multiply_tile(mean_factors, row, range, m);
    });
  });
}

}  // namespace narrowcast::collectives

// The parts of a PowerSGD step that PowerSgdJob (on an engine) and PowerSgdStream (on a GPU's stream) share. The two
// differ in their arithmetic functions, in which thread waits, and in how they handle values that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/power_sgd/compression_plan.h"
#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/comm/link/link.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// The two factors of a matrix: M is approximately P Q^T.
enum class Factor { kP, kQ };

inline Factor other_than(Factor factor) { return factor == Factor::kP ? Factor::kQ : Factor::kP; }

// The product of `factor`, which is `which`, and `other`.
inline LowRankProduct product_of(Factor which, const at::Tensor& factor, const at::Tensor& other) {
  return which == Factor::kP ? LowRankProduct{factor, other} : LowRankProduct{other, factor};
}

// float64 for a float64 bucket, else float32.
inline at::ScalarType arithmetic_dtype(at::ScalarType bucket_dtype) {
  return bucket_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

struct PowerSgdJobOptions {
  std::string name = {};  // The exchange's name in errors.
  int64_t rank = 0;
  int64_t world_size = 1;
  at::ScalarType bucket_dtype = at::kFloat;
  CompressionPlan plan = {};
  double epsilon = 0;  // See orthogonalize.
  // If set, the residual is `array - mean` as in PyTorch's hook, also for uncompressed elements, and results match
  // PyTorch bit for bit on this machine. Otherwise it is `array - own product`.
  bool averaged_memory = false;
  bool warm_start = true;
  bool alternates = false;
  WireFormat format = WireFormat::kFp32;
  LinkCost link = {};
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;  // See AllReduceArrayOptions.

  LowRankBits bits() const { return averaged_memory ? LowRankBits::kOfPyTorch : LowRankBits::kOfAnyMachine; }
  at::ScalarType arithmetic_dtype() const { return collectives::arithmetic_dtype(bucket_dtype); }
  // Whether matrices are taken from a copy of the bucket, because the dtype or the size of the arithmetic differs.
  bool needs_copy() const { return plan.is_padded() || bucket_dtype != arithmetic_dtype(); }
};

// State of a bucket between exchanges. Tensors have the arithmetic's dtype and are on the bucket's device.
struct LowRankState {
  at::Tensor residual;      // [array_numel] of the plan: the error that is added in the next step; or undefined
  at::Tensor factor;        // all Q [q_numel] or, if `is_p`, all P [p_numel]; the next step begins with it
  bool is_p = false;        // true only if steps alternate
  std::vector<bool> known;  // by matrix, in the order of batches: false if its part of `factor` must be drawn

  // The batch's part of `all`, which is all P or all Q like `factor`: a view.
  at::Tensor part_of(const at::Tensor& all, const MatrixBatch& batch) const {
    return is_p ? batch.p_of(all) : batch.q_of(all);
  }

  // The factor that the next step sends first, or alone if steps alternate. The step begins with the other factor.
  Factor sends() const { return is_p ? Factor::kQ : Factor::kP; }
};

// The factor that the next step sends last.
inline Factor last_sent(const PowerSgdJobOptions& options, const LowRankState& state) {
  return options.alternates ? state.sends() : Factor::kQ;
}

// Allocates an undefined factor with `numbers`' dtype and device, and draws its unknown parts. Afterwards all of it is
// known. Draws one seed for all unknown parts of the bucket.
void draw_unknown(const CompressionPlan& plan, at::TensorOptions numbers, SeedDraws& draws, LowRankBits bits,
                  LowRankState& state);

// An array that is sent: all P or all Q, followed by the uncompressed elements. These begin at a new block, because
// their magnitude differs.
struct SentArray {
  int64_t factor_numel = 0;
  ElementRange plain = {};  // Empty after Q unless steps alternate.

  int64_t numel() const { return plain.begin + plain.numel; }
  at::Tensor factor_of(const at::Tensor& values) const { return values.narrow(0, 0, factor_numel); }
  at::Tensor plain_of(const at::Tensor& values) const { return values.narrow(0, plain.begin, plain.numel); }

  // Copies the uncompressed elements of the array into `values`, and clears the gap between them and the factor. An
  // earlier block with a value that was not finite may have left such values in the gap.
  void put_plain(const CompressionPlan& plan, const at::Tensor& array, const at::Tensor& values) const {
    values.slice(0, factor_numel, plain.begin).zero_();
    plan.gather_plain(array, plain_of(values));
  }
};

// The arrays of a step: both are sent or, if steps alternate, one of them.
struct SentArrays {
  SentArray with_p;
  SentArray with_q;

  const SentArray& of(Factor factor) const { return factor == Factor::kP ? with_p : with_q; }
};
NARROWCAST_EXPORT SentArrays sent_arrays(const PowerSgdJobOptions& options);

// Adds the residual of the step before to the array, and returns the array's matrices by batch.
std::vector<at::Tensor> take_matrices(const CompressionPlan& plan, const LowRankState& state, const at::Tensor& array);

// Computes P = M Q or Q = M^T P for all batches, into the factor `result` of `factors`. multiply(x, factor, product)
// does the arithmetic.
template <class Multiply>
void multiply_batches(Factor result, const CompressionPlan& plan, const std::vector<at::Tensor>& matrices,
                      const LowRankProduct& factors, const Multiply& multiply) {
  for (size_t i = 0; i < matrices.size(); ++i) {
    const at::Tensor p = plan.batches[i].p_of(factors.p);
    const at::Tensor q = plan.batches[i].q_of(factors.q);
    if (result == Factor::kP) {
      multiply(matrices[i], q, p);
    } else {
      multiply(matrices[i].transpose(1, 2), p, q);
    }
  }
}

// Makes the columns of the ranks' mean P orthonormal, in place, by `orthogonalize(part)` of each batch. PyTorch's hook
// orthonormalises the sum. This differs only if an epsilon is added to the norm; the mean is then multiplied by W.
template <class Orthogonalize>
void orthogonalize_mean(const PowerSgdJobOptions& options, const at::Tensor& p, const Orthogonalize& orthogonalize) {
  if (options.epsilon > 0) {
    p.mul_(static_cast<double>(options.world_size));
  }
  for (const MatrixBatch& batch : options.plan.batches) {
    orthogonalize(batch.p_of(p));
  }
}

// Ends a step. With a warm start the next step begins with `mean()`, the ranks' mean of `sent`; otherwise it draws a
// factor.
template <class Mean>
void keep_factor(const PowerSgdJobOptions& options, Factor sent, const Mean& mean, LowRankState& state) {
  state.known.assign(state.known.size(), options.warm_start);
  if (options.warm_start) {
    state.factor = mean();
    state.is_p = sent == Factor::kP;
  }
}

}  // namespace narrowcast::collectives

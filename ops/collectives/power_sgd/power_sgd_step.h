// What a step of PowerSGD is, whoever takes it: PowerSgdJob on an engine, or PowerSgdStream on a GPU's stream. They
// differ in the functions that do the arithmetic, in who waits, and in what is done about numbers that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/wire_formats.h>
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/collectives/power_sgd/compression_plan.h"
#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/comm/link/link.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::collectives {

// The two factors of a matrix, M = P Q^T nearly.
enum class Factor { kP, kQ };

inline Factor other_than(Factor factor) { return factor == Factor::kP ? Factor::kQ : Factor::kP; }

// The product of `factor` and of the other one.
inline LowRankProduct product_of(Factor which, const at::Tensor& factor, const at::Tensor& other) {
  return which == Factor::kP ? LowRankProduct{factor, other} : LowRankProduct{other, factor};
}

struct PowerSgdJobOptions {
  std::string name = {};  // The exchange's name in errors.
  int64_t rank = 0;
  int64_t world_size = 1;
  at::ScalarType bucket_dtype = at::kFloat;
  CompressionPlan plan = {};
  double epsilon = 0;  // As orthogonalize has it.
  // The residual is what was lost of the rank's own product or, if this is set, of the mean: then all is as in
  // PyTorch's hook, which keeps it of what is sent as it is, too, and has PyTorch's bits on this machine.
  bool averaged_memory = false;
  bool warm_start = true;
  bool alternates = false;
  WireFormat format = WireFormat::kFp32;
  LinkCost link = {};
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;  // See AllReduceArrayOptions.

  LowRankBits bits() const { return averaged_memory ? LowRankBits::kOfPyTorch : LowRankBits::kOfAnyMachine; }
  // The arithmetic is float64 for float64, else float32.
  at::ScalarType arithmetic_dtype() const { return bucket_dtype == at::kDouble ? at::kDouble : at::kFloat; }
  // Whether the matrices are not those of the bucket itself, but of a copy in the arithmetic's dtype and size.
  bool needs_copy() const { return plan.is_padded() || bucket_dtype != arithmetic_dtype(); }
};

// What an exchange begins with and leaves for the next one of the same bucket. Of the arithmetic's dtype, on the
// bucket's device.
struct LowRankState {
  at::Tensor residual;      // [array_numel] of the plan: what was lost, and is added next time; or undefined
  at::Tensor factor;        // all Q [q_numel] or, where `is_p`, all P [p_numel], with which the next step begins
  bool is_p = false;        // only where steps alternate
  std::vector<bool> known;  // by matrix, in the order of batches: whether `factor` has it, or it is to be drawn

  // The batch's part of all P or all Q, whichever `factor` is: a view.
  at::Tensor part_of(const at::Tensor& all, const MatrixBatch& batch) const {
    return is_p ? batch.p_of(all) : batch.q_of(all);
  }

  // What the next step sends first, or alone where steps alternate: it begins with the other one.
  Factor sends() const { return is_p ? Factor::kQ : Factor::kP; }
};

// What the next step sends last.
inline Factor last_sent(const PowerSgdJobOptions& options, const LowRankState& state) {
  return options.alternates ? state.sends() : Factor::kQ;
}

// Makes a factor that is undefined, of `numbers`' dtype and device, and draws what it lacks: from then on all of it is
// known. One seed for all that the bucket lacks.
void draw_unknown(const CompressionPlan& plan, at::TensorOptions numbers, SeedDraws& draws, LowRankBits bits,
                  LowRankState& state);

// An array that is sent: all P or all Q and, behind them, what is sent as it is. That begins with a block of its own,
// as its numbers are of another size.
struct SentArray {
  int64_t factor_numel = 0;
  Segment plain = {};  // Where steps do not alternate, nothing is behind Q.

  int64_t numel() const { return plain.begin + plain.numel; }
  at::Tensor factor_of(const at::Tensor& values) const { return values.narrow(0, 0, factor_numel); }
  at::Tensor plain_of(const at::Tensor& values) const { return values.narrow(0, plain.begin, plain.numel); }

  // Writes what of the array is sent as it is into `values`. Between that and the factor, a block that was not finite
  // has left what is not.
  void put_plain(const CompressionPlan& plan, const at::Tensor& array, const at::Tensor& values) const {
    values.slice(0, factor_numel, plain.begin).zero_();
    plan.gather_plain(array, plain_of(values));
  }
};

// What is sent in a step: both arrays or, where steps alternate, one of them.
struct SentArrays {
  SentArray with_p;
  SentArray with_q;

  const SentArray& of(Factor factor) const { return factor == Factor::kP ? with_p : with_q; }
};
NARROWCAST_EXPORT SentArrays sent_arrays(const PowerSgdJobOptions& options);

// Adds to the array what was lost in the step before, and returns its matrices by batch.
std::vector<at::Tensor> take_matrices(const CompressionPlan& plan, const LowRankState& state, const at::Tensor& array);

// P = M Q, or Q = M^T P, of all batches into `result` of `factors`: multiply(x, factor, product) is the arithmetic's.
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

// Makes the columns of the ranks' mean P orthonormal, in place, by `orthogonalize(part)` of each batch. The mean is as
// good as the sum, but for an epsilon beside its norm.
template <class Orthogonalize>
void orthogonalize_mean(const PowerSgdJobOptions& options, const at::Tensor& p, const Orthogonalize& orthogonalize) {
  if (options.epsilon > 0) {
    p.mul_(static_cast<double>(options.world_size));
  }
  for (const MatrixBatch& batch : options.plan.batches) {
    orthogonalize(batch.p_of(p));
  }
}

// Ends a step: the next one begins with `mean()`, the ranks' mean of `sent`, or draws a factor if there is no warm
// start.
template <class Mean>
void keep_factor(const PowerSgdJobOptions& options, Factor sent, const Mean& mean, LowRankState& state) {
  state.known.assign(state.known.size(), options.warm_start);
  if (options.warm_start) {
    state.factor = mean();
    state.is_p = sent == Factor::kP;
  }
}

}  // namespace narrowcast::collectives

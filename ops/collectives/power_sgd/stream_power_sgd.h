// The PowerSGD mean of an array on a stream: the host enqueues kernels and collectives and does not wait for them. For
// GPUs; CPUs use PowerSgdJob.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/collectives/power_sgd/power_sgd_job.h"

namespace narrowcast::collectives {

// Computes the same mean as PowerSgdJob, up to rounding, and keeps the same state, on the bucket's device. It averages
// P, Q and the rest with StreamAllReduce, in the two levels of `groups` or in one; float64 always uses one level.
//
// The host does not read values of the device, so some decisions differ from PowerSgdJob:
//   - A column of zeros is replaced by a column that is drawn once, in the constructor.
//   - Without a warm start every step draws a seed. PowerSgdJob draws none after a step that is not finite.
//   - If steps alternate, a step that is not finite also counts. The next step begins with the factor that this step
//     should
// have sent, as it was before.
class NARROWCAST_EXPORT PowerSgdStream {
 public:
  // Buffers are allocated for the device's current stream, on which `enqueue` must be called. The state's tensors are
  // on `device`. options.nodes is not read.
  PowerSgdStream(const StreamRanks& ranks, PowerSgdJobOptions options, at::Device device,
                 std::shared_ptr<LowRankState> state, std::shared_ptr<PowerSgdJobMemory> memory);
  ~PowerSgdStream();
  PowerSgdStream(const PowerSgdStream&) = delete;
  PowerSgdStream& operator=(const PowerSgdStream&) = delete;

  const std::shared_ptr<LowRankState>& state() const { return state_; }

  // Bytes that this rank sends in the next call, to all peers together. In two levels, only bytes between nodes count.
  int64_t payload_bytes() const;

  // Averages `bucket`, [plan.numel] on the device, contiguous, of PowerSgdJobOptions::bucket_dtype, in place. All ranks
  // make the same calls in the same order. Throws as StreamAllReduce::enqueue.
  void enqueue(const at::Tensor& bucket);

 private:
  class Sent;
  // A call in progress.
  struct Step {
    at::Tensor bucket;
    at::Tensor array;                       // The bucket, or a copy in the arithmetic's dtype and size.
    std::vector<at::Tensor> matrices = {};  // By batch.
    at::Tensor is_finite = {};              // bool: all means so far.
  };
  const CompressionPlan& plan() const { return options_.plan; }
  LowRankBits bits() const { return options_.bits(); }
  at::TensorOptions numbers() const;
  Sent& first() const { return state_->sends() == Factor::kP ? *with_p_ : *with_q_; }

  Step begin(const at::Tensor& bucket) const;
  at::Tensor orthonormal_factor();
  void multiply_into(Factor result, const Step& step, const LowRankProduct& factors) const;
  static void exchange(Step& step, Sent& sent);
  void put_back(const Step& step, const LowRankProduct& own, const LowRankProduct& mean) const;
  at::Tensor next_factor(const Step& step, const at::Tensor& mean);
  static void keep(const Step& step, const at::Tensor& residual, const at::Tensor& lost);

  const PowerSgdJobOptions options_;
  const at::Device device_;
  const std::shared_ptr<LowRankState> state_;
  const std::shared_ptr<PowerSgdJobMemory> memory_;
  const std::unique_ptr<Sent> with_p_;  // All P, then the uncompressed elements.
  const std::unique_ptr<Sent> with_q_;  // All Q; if steps alternate, then the uncompressed elements.
  const at::Tensor spare_p_;            // Replaces columns of zeros of P; only if steps alternate.
  const at::Tensor spare_q_;            // Replaces columns of zeros of Q.
  at::Tensor former_;                   // If steps alternate: the factor with which the step before began.
};

}  // namespace narrowcast::collectives

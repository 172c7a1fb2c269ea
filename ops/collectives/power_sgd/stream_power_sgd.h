// The PowerSGD mean of an array where the hardware keeps the order: kernels and collectives are enqueued on a stream,
// and the host waits for none of them. For GPUs; PowerSgdJob is the CPU's way.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/collectives/power_sgd/power_sgd_job.h"

namespace narrowcast::collectives {

// Makes of a bucket what PowerSgdJob makes of it, but for roundings, and keeps the same state, on the bucket's device.
// P, Q and the rest are means of StreamAllReduce's, in the two levels of `groups` or in one, and in one of float64.
//
// As the host learns nothing of the numbers, some of what PowerSgdJob decides is decided otherwise:
//   - A column of zeros is replaced by one that was drawn once for all.
//   - A seed is drawn, where steps do not begin with Q of the one before, in a step that is not finite, too.
//   - Where steps alternate, one that is not finite counts as one: the next begins with the factor that it was to send,
//     as that was before.
class NARROWCAST_EXPORT PowerSgdStream {
 public:
  // Its buffers are allocated for the device's current stream, on which `enqueue` must be called. The state's tensors
  // are on `device`. options.nodes is not read.
  PowerSgdStream(const StreamRanks& ranks, PowerSgdJobOptions options, at::Device device,
                 std::shared_ptr<LowRankState> state, std::shared_ptr<PowerSgdJobMemory> memory);
  ~PowerSgdStream();
  PowerSgdStream(const PowerSgdStream&) = delete;
  PowerSgdStream& operator=(const PowerSgdStream&) = delete;

  const std::shared_ptr<LowRankState>& state() const { return state_; }

  // Bytes that this rank sends in the next call, to all peers together; of two levels, between nodes.
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
  const std::unique_ptr<Sent> with_p_;  // All P, then what is sent as it is.
  const std::unique_ptr<Sent> with_q_;  // All Q and, where steps alternate, the same.
  const at::Tensor spare_p_;            // Where steps alternate: what replaces columns of zeros,
  const at::Tensor spare_q_;            // and always of Q.
  at::Tensor former_;                   // Where steps alternate: the factor with which the step before began.
};

}  // namespace narrowcast::collectives

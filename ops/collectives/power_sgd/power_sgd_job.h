// The PowerSGD mean of an array as a job of an engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/collectives/power_sgd/all_reduce_array.h"
#include "ops/collectives/power_sgd/power_sgd_step.h"
#include "ops/comm/engine/engine.h"

namespace narrowcast::collectives {

// State that one hook shares among all jobs of an engine, or all exchanges on one stream. Seeds are drawn in the order
// of these.
struct PowerSgdJobMemory {
  explicit PowerSgdJobMemory(const SeedDraws& seeds) : draws(seeds) {}
  SeedDraws draws;
  std::shared_ptr<MessageMemory> first = std::make_shared<MessageMemory>();
  std::shared_ptr<MessageMemory> second = std::make_shared<MessageMemory>();
  std::shared_ptr<StreamWorkspace> on_stream = std::make_shared<StreamWorkspace>();
};

// Replaces a bucket by its mean over the ranks, with its matrices approximated by PowerSGD and the rest uncompressed.
// Before:  rank r has the bucket g_r and, with error feedback, a residual e_r. All ranks have the same Q; a missing
//          Q is drawn at random.
// start:   M_r = g_r + e_r. Rank r makes Q's columns orthonormal and sends P_r = M_r Q and the uncompressed elements.
// advance: all ranks have P, the mean of P_r, and make its columns orthonormal. Rank r sends Q_r = M_r^T P.
// finish:  all ranks have Q, the mean of Q_r. The bucket becomes P Q^T, the residual M_r - P Q_r^T.
// After:   every rank has computed the same P and Q from the same bytes, and the same bucket from these.
// If steps alternate, each step takes one of P and Q from the step before and sends only the other one, in one hop.
//
// If the mean of P, of Q or of the rest is not finite, which all ranks see, the bucket becomes NaN. Residual and factor
// then stay unchanged.
class NARROWCAST_EXPORT PowerSgdJob final : public engine::Job {
 public:
  PowerSgdJob(PowerSgdJobOptions options, std::shared_ptr<LowRankState> state,
              std::shared_ptr<PowerSgdJobMemory> memory);
  ~PowerSgdJob() override;
  PowerSgdJob(const PowerSgdJob&) = delete;
  PowerSgdJob& operator=(const PowerSgdJob&) = delete;

  // The bucket that the next submission averages, in place: [plan.numel] on the CPU, contiguous, of
  // PowerSgdJobOptions::bucket_dtype.
  void set_bucket(at::Tensor bucket) { bucket_ = std::move(bucket); }

  const CompressionPlan& plan() const { return options_.plan; }
  const std::shared_ptr<LowRankState>& state() const { return state_; }

  // Bytes that this rank sends in the next submission, to all peers together.
  int64_t payload_bytes() const;

  std::string name() const override { return options_.name; }
  int64_t advances() const override;
  bool is_ready() override;
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;
  void give_up() override;

 private:
  LowRankBits bits() const { return options_.bits(); }
  // A step has the first exchange and, unless steps alternate, the second one.
  AllReduceArray& first() const { return state_->sends() == Factor::kP ? *with_p_ : *with_q_; }
  AllReduceArray* second() const { return options_.alternates ? nullptr : with_q_.get(); }
  const at::Tensor& kept(Factor factor) const { return factor == Factor::kP ? p_ : q_; }

  void take_array();
  void take_factor();
  void replace_zero_columns(const MatrixBatch& batch, const at::Tensor& orthonormal);
  void send_first(engine::Transport& transport);
  void send_second(engine::Transport& transport);
  void multiply_into(Factor result, const LowRankProduct& factors) const;
  void look_at(const at::Tensor& mean);
  void put_back(const LowRankProduct& own, const LowRankProduct& mean);
  void put_back_as_pytorch(const LowRankProduct& mean);
  void put_back_plain();
  at::Tensor own_without_lost(const at::Tensor& own, const AllReduceArray& sent) const;
  void end_step();

  const PowerSgdJobOptions options_;
  const std::shared_ptr<LowRankState> state_;
  const std::shared_ptr<PowerSgdJobMemory> memory_;
  const SentArrays sent_;
  const std::unique_ptr<AllReduceArray> with_p_;  // Laid out as sent_.with_p.
  const std::unique_ptr<AllReduceArray> with_q_;  // Laid out as sent_.with_q.
  const at::Tensor p_;                            // Orthonormal; this rank's own factor if it is sent last.
  const at::Tensor q_;                            // Likewise.
  const at::Tensor copy_;  // A copy of the bucket where the arithmetic needs one, else undefined.
  // State of the call in progress:
  at::Tensor bucket_;
  at::Tensor array_;                  // The bucket or its copy.
  std::vector<at::Tensor> matrices_;  // By batch.
  int64_t advanced_ = 0;
  bool is_poisoned_ = false;
};

}  // namespace narrowcast::collectives

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

// Shared by all jobs of one engine, or all exchanges on one stream, that one hook makes: the seeds are drawn in their
// order.
struct PowerSgdJobMemory {
  explicit PowerSgdJobMemory(const SeedDraws& seeds) : draws(seeds) {}
  SeedDraws draws;
  std::shared_ptr<MessageMemory> first = std::make_shared<MessageMemory>();
  std::shared_ptr<MessageMemory> second = std::make_shared<MessageMemory>();
  std::shared_ptr<StreamWorkspace> on_stream = std::make_shared<StreamWorkspace>();
};

// Replaces a bucket by the mean over the ranks of what its matrices are on a few columns, and of the rest as it is.
// Before:  rank r has the bucket g_r and, where errors are fed back, a residual e_r; all ranks have the same Q, which
// are
//          drawn at random if there are none.
// start:   M_r = g_r + e_r; Q's columns are made orthonormal; rank r sends P_r = M_r Q, and what is not compressed.
// advance: all have the mean P of P_r, and make its columns orthonormal; rank r sends Q_r = M_r^T P.
// finish:  all have the mean Q of Q_r; the bucket becomes P Q^T, the residual M_r - P Q_r^T.
// After:   every rank has computed the same P and Q from the same bytes, and the same bucket from these.
// Where steps alternate, one of P and Q is that of the step before, and the other one is sent: there is one hop.
//
// If the mean of P, of Q or of the rest is not finite, which all ranks see, the bucket becomes NaN, and residual and
// factor stay what they were.
class NARROWCAST_EXPORT PowerSgdJob final : public engine::Job {
 public:
  PowerSgdJob(PowerSgdJobOptions options, std::shared_ptr<LowRankState> state,
              std::shared_ptr<PowerSgdJobMemory> memory);
  ~PowerSgdJob() override;
  PowerSgdJob(const PowerSgdJob&) = delete;
  PowerSgdJob& operator=(const PowerSgdJob&) = delete;

  // What the next submission averages, in place: [plan.numel] on the CPU, contiguous, of
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

 private:
  LowRankBits bits() const { return options_.bits(); }
  // The exchanges of a step are the first one and, where steps do not alternate, the second one.
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
  const std::unique_ptr<AllReduceArray> with_p_;  // As sent_.with_p has it,
  const std::unique_ptr<AllReduceArray> with_q_;  // and as sent_.with_q.
  const at::Tensor p_;                            // Orthonormal or, where it is sent last, this rank's own.
  const at::Tensor q_;                            // The same.
  const at::Tensor copy_;  // A copy of the bucket where the arithmetic needs one, else undefined.
  // These are the call's in progress:
  at::Tensor bucket_;
  at::Tensor array_;                  // The bucket or its copy.
  std::vector<at::Tensor> matrices_;  // By batch.
  int64_t advanced_ = 0;
  bool is_poisoned_ = false;
  node::FailureGuard guard_;
};

}  // namespace narrowcast::collectives

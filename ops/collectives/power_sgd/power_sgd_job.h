// The PowerSGD mean of an array as a job of an engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/power_sgd/compression_plan.h"
#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/collectives/power_sgd/low_rank_state.h"
#include "ops/collectives/power_sgd/mean_array.h"
#include "ops/engine/engine.h"

namespace narrowcast::collectives {

struct PowerSgdJobOptions {
  std::string name = {};  // Of the exchange, in errors.
  int64_t rank = 0;
  int64_t world_size = 1;
  at::ScalarType bucket_dtype = at::kFloat;  // The arithmetic is float64 for float64, else float32.
  CompressionPlan plan = {};
  double epsilon = 0;  // As orthogonalize has it.
  // The residual is what was lost of the rank's own product or, if this is set, of the mean: then all is as in
  // PyTorch's hook, which keeps it of what is sent as it is, too, and has PyTorch's bits on this machine.
  bool averaged_memory = false;
  bool warm_start = true;
  bool alternates = false;
  WireFormat format = WireFormat::kFp32;
  LinkCost link = {};
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;  // See MeanArrayOptions.
};

// Where what is sent as it is begins behind all P or all Q: with a block of its own, as its numbers are of another
// size.
int64_t plain_begin(int64_t factor_numel, WireFormat format);

// Elements of what is sent in a step: of both arrays or, where steps alternate, of one of them.
struct SentArrays {
  int64_t with_p = 0;  // all P and, behind them, what is sent as it is
  int64_t with_q = 0;  // all Q and, where steps alternate, the same
};

// Those of a job with these options: what fills up blocks before what is sent as it is counts.
NARROWCAST_EXPORT SentArrays sent_arrays(const PowerSgdJobOptions& options);

// Shared by all jobs of one engine that one hook makes: the seeds are drawn in the order of jobs.
struct PowerSgdJobMemory {
  explicit PowerSgdJobMemory(const SeedDraws& seeds) : draws(seeds) {}
  SeedDraws draws;
  std::shared_ptr<MessageMemory> first = std::make_shared<MessageMemory>();
  std::shared_ptr<MessageMemory> second = std::make_shared<MessageMemory>();
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

  // Of the arithmetic for buckets of that dtype.
  static at::ScalarType arithmetic_dtype(at::ScalarType bucket) {
    return bucket == at::kDouble ? at::kDouble : at::kFloat;
  }

  // Bytes that this rank sends in the next submission, to all peers together.
  int64_t payload_bytes() const;

  std::string name() const override { return options_.name; }
  int64_t advances() const override;
  bool is_ready() override;
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  LowRankBits bits() const;
  bool sends_p() const { return !state_->is_p; }
  // Of the exchanges of a step, the first one and, where steps do not alternate, the other one.
  MeanArray& first() const { return sends_p() ? *with_p_ : *with_q_; }
  MeanArray* second() const { return options_.alternates ? nullptr : with_q_.get(); }
  at::Tensor plain_part(const at::Tensor& values) const;

  void take_array();
  void take_factor();
  void replace_zero_columns(const MatrixBatch& batch, const at::Tensor& orthonormal);
  void send_first(engine::Transport& transport);
  void send_second(engine::Transport& transport);
  void multiply_into_p(const at::Tensor& p) const;
  void multiply_into_q(const at::Tensor& q) const;
  void look_at(const at::Tensor& mean);
  void put_back(const LowRankProduct& own, const LowRankProduct& mean);
  void put_back_as_pytorch(const LowRankProduct& mean);
  void put_back_plain();
  at::Tensor own_without_lost(const at::Tensor& own, const MeanArray& sent) const;
  void end_step();

  const PowerSgdJobOptions options_;
  const std::shared_ptr<LowRankState> state_;
  const std::shared_ptr<PowerSgdJobMemory> memory_;
  const int64_t plain_begin_p_;              // Where the rest begins behind all P,
  const int64_t plain_begin_q_;              // and behind all Q.
  const std::unique_ptr<MeanArray> with_p_;  // All P, then what is sent as it is.
  const std::unique_ptr<MeanArray> with_q_;  // All Q and, where steps alternate, the same.
  const at::Tensor p_;                       // Orthonormal or, where it is sent last, this rank's own.
  const at::Tensor q_;                       // The same.
  const at::Tensor copy_;  // Of the bucket, where that is of another dtype or size than the arithmetic.
  // Of the call in progress:
  at::Tensor bucket_;
  at::Tensor array_;                  // The bucket or its copy.
  std::vector<at::Tensor> matrices_;  // By batch.
  int64_t advanced_ = 0;
  bool is_poisoned_ = false;
  node::GiveUpOnFailure guard_;
};

}  // namespace narrowcast::collectives

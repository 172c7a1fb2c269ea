#include "ops/collectives/power_sgd/stream_power_sgd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>
#include <utility>

#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/collectives/power_sgd/stream_low_rank.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kSeedOfSpares = 1;  // Separate from SeedDraws, so that spares do not change the seeds that are drawn.

AllReduceJobOptions mean_options(const PowerSgdJobOptions& options, const char* what, int64_t numel) {
  AllReduceJobOptions mean{.name = std::string(what) + " of " + options.name,
                           .rank = options.rank,
                           .world_size = options.world_size,
                           .numel = numel,
                           .format = options.format,
                           .link = options.link};
  if (options.bucket_dtype == at::kDouble) {
    mean.codec = [](at::Device) { return float64_codec(); };
  }
  return mean;
}

bool loses(const PowerSgdJobOptions& options) {
  return codec::wire::rounds(options.format) && options.bucket_dtype != at::kDouble;
}

node::NodeLayout layout_of(const PowerSgdJobOptions& options, const StreamRanks& ranks, int64_t numel) {
  const bool has_levels = ranks.groups != nullptr && options.bucket_dtype != at::kDouble && numel > 0;
  return has_levels ? ranks.groups->layout() : node::NodeLayout::flat(options.world_size);
}

at::Tensor spares(int64_t numel, at::TensorOptions options, LowRankBits bits) {
  const at::Tensor numbers = at::empty({numel}, options.device(at::kCPU));
  NormalNumbers(kSeedOfSpares, bits).fill(numbers);
  return on_device(numbers, options.device());
}

at::Tensor nan_unless(const at::Tensor& is_finite, const at::Tensor& numbers) {
  return numbers.masked_fill(is_finite.logical_not(), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

// A factor and the uncompressed elements after it.
class PowerSgdStream::Sent {
 public:
  Sent(const StreamRanks& ranks, const PowerSgdJobOptions& options, at::Device device, Factor factor,
       std::shared_ptr<StreamWorkspace> workspace)
      : array_(sent_arrays(options).of(factor)),
        values_(at::zeros({array_.numel()}, at::TensorOptions(options.arithmetic_dtype()).device(device))),
        mean_(ranks, mean_options(options, factor == Factor::kP ? "P" : "Q", values_.numel()), device,
              std::move(workspace)) {
    if (loses(options)) {
      lost_.emplace(layout_of(options, ranks, values_.numel()), options.rank, values_, options.format);
    }
  }

  int64_t payload_bytes() const { return mean_.payload_bytes(); }
  at::Tensor factor() const { return array_.factor_of(values_); }
  at::Tensor plain() const { return array_.plain_of(values_); }
  const at::Tensor& values() const { return values_; }

  void take_plain(const CompressionPlan& plan, const at::Tensor& array) const {
    array_.put_plain(plan, array, values_);
  }

  void exchange() { mean_.enqueue({values_, {}, lost_ ? lost_->take_all() : Residuals{}}); }

  // `own`, this rank's own factor, as the other ranks decoded it.
  at::Tensor without_lost(const at::Tensor& own) const {
    return lost_ ? own - array_.factor_of(lost_->in_own_numbers()) : own;
  }
  // Undefined if nothing is rounded.
  at::Tensor lost_of_plain() const { return lost_ ? array_.plain_of(lost_->in_own_numbers()) : at::Tensor(); }

 private:
  const SentArray array_;
  const at::Tensor values_;
  StreamAllReduce mean_;
  std::optional<LostInRounding> lost_;
};

PowerSgdStream::PowerSgdStream(const StreamRanks& ranks, PowerSgdJobOptions options, at::Device device,
                               std::shared_ptr<LowRankState> state, std::shared_ptr<PowerSgdJobMemory> memory)
    : options_(std::move(options)),
      device_(device),
      state_(std::move(state)),
      memory_(std::move(memory)),
      with_p_(std::make_unique<Sent>(ranks, options_, device, Factor::kP, memory_->on_stream)),
      with_q_(std::make_unique<Sent>(ranks, options_, device, Factor::kQ, memory_->on_stream)),
      spare_p_(options_.alternates ? spares(plan().p_numel, numbers(), bits()) : at::Tensor()),
      spare_q_(spares(plan().q_numel, numbers(), bits())) {}

PowerSgdStream::~PowerSgdStream() = default;

at::TensorOptions PowerSgdStream::numbers() const {
  return at::TensorOptions(options_.arithmetic_dtype()).device(device_);
}

int64_t PowerSgdStream::payload_bytes() const {
  return first().payload_bytes() + (options_.alternates ? 0 : with_q_->payload_bytes());
}

void PowerSgdStream::enqueue(const at::Tensor& bucket) {
  Step step = begin(bucket);
  const at::Tensor known = orthonormal_factor();
  Sent& sent = first();
  multiply_into(state_->sends(), step, product_of(state_->sends(), sent.factor(), known));
  sent.take_plain(plan(), step.array);
  at::Tensor own = options_.alternates ? sent.factor().clone() : at::Tensor();
  exchange(step, sent);
  at::Tensor other = known;  // The factor that the own product and the mean have in common.
  if (!options_.alternates) {
    other = sent.factor().clone();
    orthogonalize_mean(options_, other,
                       [&](const at::Tensor& part) { orthogonalize_on_stream(part, options_.epsilon, bits()); });
    multiply_into(Factor::kQ, step, {other, with_q_->factor()});
    own = with_q_->factor().clone();
    exchange(step, *with_q_);
  }
  Sent& last = options_.alternates ? sent : *with_q_;
  const Factor which = last_sent(options_, *state_);
  put_back(step, product_of(which, last.without_lost(own), other),
           product_of(which, nan_unless(step.is_finite, last.factor()), other));
  if (!step.array.is_same(bucket)) {
    bucket.copy_(step.array.narrow(0, 0, plan().numel));
  }
  keep_factor(
      options_, which, [&] { return next_factor(step, last.factor()); }, *state_);
}

// The factor with which the next step begins: the mean, or the former factor if the step is not finite.
at::Tensor PowerSgdStream::next_factor(const Step& step, const at::Tensor& mean) {
  at::Tensor fallback = state_->factor;
  if (options_.alternates) {
    fallback = former_.defined() ? former_ : state_->sends() == Factor::kP ? spare_p_ : spare_q_;
    former_ = state_->factor;
  }
  return at::where(step.is_finite, mean, fallback);
}

PowerSgdStream::Step PowerSgdStream::begin(const at::Tensor& bucket) const {
  Step step{.bucket = bucket, .array = bucket};
  if (options_.needs_copy()) {
    step.array = at::zeros({plan().array_numel}, numbers());
    step.array.narrow(0, 0, plan().numel).copy_(bucket);
  }
  step.matrices = take_matrices(plan(), *state_, step.array);
  return step;
}

at::Tensor PowerSgdStream::orthonormal_factor() {
  draw_unknown(plan(), numbers(), memory_->draws, bits(), *state_);
  at::Tensor orthonormal = state_->factor.clone();
  const at::Tensor& spare = state_->sends() == Factor::kP ? spare_q_ : spare_p_;
  for (const MatrixBatch& batch : plan().batches) {
    orthogonalize_on_stream(state_->part_of(orthonormal, batch), options_.epsilon, bits(),
                            state_->part_of(spare, batch));
  }
  return orthonormal;
}

void PowerSgdStream::multiply_into(Factor result, const Step& step, const LowRankProduct& factors) const {
  multiply_batches(
      result, plan(), step.matrices, factors,
      [](const at::Tensor& x, const at::Tensor& factor, at::Tensor product) { at::bmm_out(product, x, factor); });
}

void PowerSgdStream::exchange(Step& step, Sent& sent) {
  sent.exchange();
  const at::Tensor is_finite = sent.values().isfinite().all();
  step.is_finite = step.is_finite.defined() ? step.is_finite.logical_and(is_finite) : is_finite;
}

// Replaces the residual by `lost`, unless the step is not finite.
void PowerSgdStream::keep(const Step& step, const at::Tensor& residual, const at::Tensor& lost) {
  residual.copy_(at::where(step.is_finite, lost, residual));
}

// Not shared with PowerSgdJob: that checks on the host whether the step is finite, and computes both products in one
// pass over memory, which pays only on the CPU.
void PowerSgdStream::put_back(const Step& step, const LowRankProduct& own, const LowRankProduct& mean) const {
  const bool keeps_local = state_->residual.defined() && !options_.averaged_memory;
  const at::Tensor before = state_->residual.defined() && !keeps_local ? step.array.clone() : at::Tensor();
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    const MatrixBatch& batch = plan().batches[i];
    if (keeps_local) {
      const at::Tensor sent = batch.q_of(own.q).transpose(1, 2);
      const at::Tensor lost = at::baddbmm(step.matrices[i], batch.p_of(own.p), sent, /*beta=*/1, /*alpha=*/-1);
      for (int64_t k = 0; k < batch.count(); ++k) {
        keep(step, batch.matrix_of(state_->residual, k), lost[k]);
      }
    }
    at::Tensor product = step.matrices[i];
    at::bmm_out(product, batch.p_of(mean.p), batch.q_of(mean.q).transpose(1, 2));
    batch.put_back(product, step.array);
  }
  plan().scatter_plain(nan_unless(step.is_finite, first().plain()), step.array);
  const at::Tensor lost = keeps_local ? first().lost_of_plain() : at::Tensor();
  int64_t begin = 0;
  for (const ElementRange& range : lost.defined() ? plan().plain : std::vector<ElementRange>()) {
    keep(step, state_->residual.narrow(0, range.begin, range.numel), lost.narrow(0, begin, range.numel));
    begin += range.numel;
  }
  if (before.defined()) {
    keep(step, state_->residual, before - step.array);
  }
}

}  // namespace narrowcast::collectives

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

#include "ops/collectives/mean/stream_mean.h"
#include "ops/collectives/power_sgd/stream_low_rank.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kSeedOfSpares = 1;  // Of no draw: whoever draws seeds counts on as if there were no spares.

QuantizedMeanOptions mean_options(const PowerSgdJobOptions& options, const char* what, int64_t numel) {
  QuantizedMeanOptions mean{.name = std::string(what) + " of " + options.name,
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
  return options.format != WireFormat::kFp32 && options.bucket_dtype != at::kDouble;
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

struct PowerSgdStream::Content {
  const char* what;      // "P" or "Q", in errors
  int64_t factor_numel;  // of all of it
  Segment plain;         // what travels behind the factor as it is; or nothing
};

// A factor and what travels behind it.
class PowerSgdStream::Sent {
 public:
  Sent(const StreamRanks& ranks, const PowerSgdJobOptions& options, at::TensorOptions numbers, const Content& content)
      : factor_numel_(content.factor_numel),
        plain_(content.plain),
        values_(at::zeros({plain_.begin + plain_.numel}, numbers)),
        mean_(ranks, mean_options(options, content.what, values_.numel()), numbers.device()) {
    if (loses(options)) {
      lost_.emplace(layout_of(options, ranks, values_.numel()), options.rank, values_);
    }
  }

  int64_t payload_bytes() const { return mean_.payload_bytes(); }
  at::Tensor factor() const { return values_.narrow(0, 0, factor_numel_); }
  at::Tensor plain() const { return values_.narrow(0, plain_.begin, plain_.numel); }
  const at::Tensor& values() const { return values_; }

  // Between the two, a block that was not finite has left what is not.
  void take_plain(const CompressionPlan& plan, const at::Tensor& array) const {
    values_.slice(0, factor_numel_, plain_.begin).zero_();
    plan.gather_plain(array, plain());
  }

  void exchange() { mean_.enqueue({values_, {}, lost_ ? lost_->take_all() : Residuals{}}); }

  // Of a factor of this rank's own, what the others have.
  at::Tensor without_lost(const at::Tensor& own) const {
    return lost_ ? own - lost_->in_own_numbers().narrow(0, 0, factor_numel_) : own;
  }
  // Undefined if nothing can be lost.
  at::Tensor lost_of_plain() const {
    return lost_ ? lost_->in_own_numbers().narrow(0, plain_.begin, plain_.numel) : at::Tensor();
  }

 private:
  const int64_t factor_numel_;
  const Segment plain_;
  const at::Tensor values_;
  StreamMean mean_;
  std::optional<LostInRounding> lost_;
};

PowerSgdStream::PowerSgdStream(const StreamRanks& ranks, PowerSgdJobOptions options, at::Device device,
                               std::shared_ptr<LowRankState> state, std::shared_ptr<PowerSgdJobMemory> memory)
    : options_(std::move(options)),
      device_(device),
      state_(std::move(state)),
      memory_(std::move(memory)),
      with_p_(std::make_unique<Sent>(
          ranks, options_, numbers(),
          Content{"P", plan().p_numel, {plain_begin(plan().p_numel, options_.format), plan().plain_numel}})),
      with_q_(std::make_unique<Sent>(
          ranks, options_, numbers(),
          Content{"Q", plan().q_numel,
                  options_.alternates ? Segment{plain_begin(plan().q_numel, options_.format), plan().plain_numel}
                                      : Segment{plan().q_numel, 0}})),
      spare_p_(options_.alternates ? spares(plan().p_numel, numbers(), bits()) : at::Tensor()),
      spare_q_(spares(plan().q_numel, numbers(), bits())) {}

PowerSgdStream::~PowerSgdStream() = default;

at::TensorOptions PowerSgdStream::numbers() const {
  return at::TensorOptions(PowerSgdJob::arithmetic_dtype(options_.bucket_dtype)).device(device_);
}

int64_t PowerSgdStream::payload_bytes() const {
  return first().payload_bytes() + (options_.alternates ? 0 : with_q_->payload_bytes());
}

void PowerSgdStream::enqueue(const at::Tensor& bucket) {
  Step step = begin(bucket);
  const at::Tensor known = orthonormal_factor();
  Sent& sent = first();
  if (sends_p()) {
    multiply_into_p(step, known, sent.factor());
  } else {
    multiply_into_q(step, known, sent.factor());
  }
  sent.take_plain(plan(), step.array);
  at::Tensor own = options_.alternates ? sent.factor().clone() : at::Tensor();
  exchange(step, sent);
  at::Tensor other = known;  // The factor that is the same for what is own and for the mean.
  if (!options_.alternates) {
    other = sent.factor().clone();
    if (options_.epsilon > 0) {
      other.mul_(static_cast<double>(options_.world_size));  // The mean is as good as the sum, but beside an epsilon.
    }
    for (const MatrixBatch& batch : plan().batches) {
      orthogonalize_on_stream(batch.p_of(other), options_.epsilon, bits());
    }
    multiply_into_q(step, other, with_q_->factor());
    own = with_q_->factor().clone();
    exchange(step, *with_q_);
  }
  Sent& last = options_.alternates ? sent : *with_q_;
  const at::Tensor sent_own = last.without_lost(own);
  const at::Tensor mean = nan_unless(step.is_finite, last.factor());
  if (last_is_p()) {
    put_back(step, {sent_own, other}, {mean, other});
  } else {
    put_back(step, {other, sent_own}, {other, mean});
  }
  if (!step.array.is_same(bucket)) {
    bucket.copy_(step.array.narrow(0, 0, plan().numel));
  }
  remember(step, last.factor());
}

// What the next step begins with.
void PowerSgdStream::remember(const Step& step, const at::Tensor& mean) {
  state_->known.assign(state_->known.size(), options_.warm_start);
  if (!options_.warm_start) {
    return;
  }
  const bool is_p = last_is_p();
  at::Tensor fallback = state_->factor;
  if (options_.alternates) {
    fallback = former_.defined() ? former_ : is_p ? spare_p_ : spare_q_;
    former_ = state_->factor;
  }
  state_->factor = at::where(step.is_finite, mean, fallback);
  state_->is_p = is_p;
}

PowerSgdStream::Step PowerSgdStream::begin(const at::Tensor& bucket) const {
  Step step{.bucket = bucket, .array = bucket};
  if (plan().is_padded() || bucket.scalar_type() != numbers().dtype()) {
    step.array = at::zeros({plan().array_numel}, numbers());
    step.array.narrow(0, 0, plan().numel).copy_(bucket);
  }
  if (state_->residual.defined()) {
    step.array.add_(state_->residual);
  }
  for (const MatrixBatch& batch : plan().batches) {
    step.matrices.push_back(batch.matrices(step.array));
  }
  return step;
}

at::Tensor PowerSgdStream::orthonormal_factor() {
  draw_unknown(plan(), numbers(), memory_->draws, bits(), *state_);
  at::Tensor orthonormal = state_->factor.clone();
  const at::Tensor& spare = sends_p() ? spare_q_ : spare_p_;
  for (const MatrixBatch& batch : plan().batches) {
    orthogonalize_on_stream(state_->part_of(orthonormal, batch), options_.epsilon, bits(),
                            state_->part_of(spare, batch));
  }
  return orthonormal;
}

void PowerSgdStream::multiply_into_p(const Step& step, const at::Tensor& q, const at::Tensor& p) const {
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    at::Tensor result = plan().batches[i].p_of(p);
    at::bmm_out(result, step.matrices[i], plan().batches[i].q_of(q));
  }
}

void PowerSgdStream::multiply_into_q(const Step& step, const at::Tensor& p, const at::Tensor& q) const {
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    at::Tensor result = plan().batches[i].q_of(q);
    at::bmm_out(result, step.matrices[i].transpose(1, 2), plan().batches[i].p_of(p));
  }
}

void PowerSgdStream::exchange(Step& step, Sent& sent) {
  sent.exchange();
  const at::Tensor is_finite = sent.values().isfinite().all();
  step.is_finite = step.is_finite.defined() ? step.is_finite.logical_and(is_finite) : is_finite;
}

// The residual becomes what was lost, unless the step is not finite.
void PowerSgdStream::keep(const Step& step, const at::Tensor& residual, const at::Tensor& lost) {
  residual.copy_(at::where(step.is_finite, lost, residual));
}

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
    for (int64_t k = 0; batch.count() > 1 && k < batch.count(); ++k) {
      batch.matrix_of(step.array, k).copy_(product[k]);
    }
  }
  plan().scatter_plain(nan_unless(step.is_finite, first().plain()), step.array);
  const at::Tensor lost = keeps_local ? first().lost_of_plain() : at::Tensor();
  int64_t begin = 0;
  for (const Segment& segment : lost.defined() ? plan().plain : std::vector<Segment>()) {
    keep(step, state_->residual.narrow(0, segment.begin, segment.numel), lost.narrow(0, begin, segment.numel));
    begin += segment.numel;
  }
  if (before.defined()) {
    keep(step, state_->residual, before - step.array);
  }
}

}  // namespace narrowcast::collectives

#include "ops/collectives/power_sgd/power_sgd_job.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ops/codec/wire_format.h"

namespace narrowcast::collectives {
namespace {

using Job = PowerSgdJob;

MeanArrayOptions array_options(const PowerSgdJobOptions& options, int64_t numel, int64_t array) {
  return {.rank = options.rank,
          .world_size = options.world_size,
          .numel = numel,
          .dtype = Job::arithmetic_dtype(options.bucket_dtype),
          .format = options.format,
          .keeps_lost = true,
          .array = array,
          .link = options.link,
          .nodes = options.nodes};
}

bool needs_copy(const PowerSgdJobOptions& options) {
  return options.plan.is_padded() || options.bucket_dtype != Job::arithmetic_dtype(options.bucket_dtype);
}

at::Tensor zeros(int64_t numel, const PowerSgdJobOptions& options) {
  return at::zeros({numel}, Job::arithmetic_dtype(options.bucket_dtype));
}

}  // namespace

int64_t plain_begin(int64_t factor_numel, WireFormat format) {
  const int64_t block = codec::wire::visit(format, [](auto type) { return decltype(type)::kBlock; });
  return (factor_numel + block - 1) / block * block;
}

SentArrays sent_arrays(const PowerSgdJobOptions& options) {
  const CompressionPlan& plan = options.plan;
  return {.with_p = plain_begin(plan.p_numel, options.format) + plan.plain_numel,
          .with_q = options.alternates ? plain_begin(plan.q_numel, options.format) + plan.plain_numel : plan.q_numel};
}

PowerSgdJob::PowerSgdJob(PowerSgdJobOptions options, std::shared_ptr<LowRankState> state,
                         std::shared_ptr<PowerSgdJobMemory> memory)
    : options_(std::move(options)),
      state_(std::move(state)),
      memory_(std::move(memory)),
      plain_begin_p_(plain_begin(plan().p_numel, options_.format)),
      plain_begin_q_(plain_begin(plan().q_numel, options_.format)),
      with_p_(std::make_unique<MeanArray>(array_options(options_, sent_arrays(options_).with_p, 0), memory_->first)),
      with_q_(std::make_unique<MeanArray>(
          array_options(options_, sent_arrays(options_).with_q, options_.alternates ? 0 : 1),
          options_.alternates ? memory_->first : memory_->second)),
      p_(zeros(plan().p_numel, options_)),
      q_(zeros(plan().q_numel, options_)),
      copy_(needs_copy(options_) ? zeros(plan().array_numel, options_) : at::Tensor()),
      guard_(with_p_->has_levels() ? options_.nodes->memory : nullptr) {}

PowerSgdJob::~PowerSgdJob() = default;

LowRankBits PowerSgdJob::bits() const {
  return options_.averaged_memory ? LowRankBits::kOfPyTorch : LowRankBits::kOfAnyMachine;
}

int64_t PowerSgdJob::payload_bytes() const {
  return first().payload_bytes() + (second() == nullptr ? 0 : second()->payload_bytes());
}

int64_t PowerSgdJob::advances() const {
  return first().advances() + (second() == nullptr ? 0 : 1 + second()->advances());
}

bool PowerSgdJob::is_ready() { return advanced_ < first().advances() && first().is_ready(); }

void PowerSgdJob::start(engine::Transport& transport) {
  guard_.begin();
  advanced_ = 0;
  is_poisoned_ = false;
  guard_.attempt([&] {
    first().post_receives(transport);
    if (second() != nullptr) {
      second()->post_receives(transport);
    }
    take_array();
    take_factor();
    send_first(transport);
  });
}

void PowerSgdJob::advance(engine::Transport& transport) {
  guard_.attempt([&] {
    const int64_t of_first = first().advances();
    if (advanced_ < of_first) {
      first().advance(transport);
    } else if (advanced_ == of_first) {
      first().finish(transport);
      send_second(transport);
    } else {
      second()->advance(transport);
    }
    ++advanced_;
  });
}

at::Tensor PowerSgdJob::finish(engine::Transport& transport) {
  guard_.attempt([&] {
    MeanArray& last = second() == nullptr ? first() : *second();
    last.finish(transport);
    look_at(last.values());
    end_step();
  });
  guard_.end();
  array_ = at::Tensor();
  matrices_.clear();
  return std::exchange(bucket_, {});
}

void PowerSgdJob::take_array() {
  array_ = bucket_;
  if (copy_.defined()) {
    array_ = copy_;
    array_.narrow(0, 0, plan().numel).copy_(bucket_);
    array_.narrow(0, plan().numel, plan().array_numel - plan().numel).zero_();
  }
  if (state_->residual.defined()) {
    array_.add_(state_->residual);
  }
  for (const MatrixBatch& batch : plan().batches) {
    matrices_.push_back(batch.matrices(array_));
  }
}

void PowerSgdJob::take_factor() {
  const at::Tensor& orthonormal = sends_p() ? q_ : p_;
  draw_unknown(plan(), orthonormal.options(), memory_->draws, bits(), *state_);
  orthonormal.copy_(state_->factor);
  for (const MatrixBatch& batch : plan().batches) {
    const at::Tensor part = state_->part_of(orthonormal, batch);
    orthogonalize(part, options_.epsilon, bits());
    if (has_zero_column(part)) {
      replace_zero_columns(batch, part);
    }
  }
}

// A gradient that was zero, or had fewer independent columns, leaves columns of zeros, which would stay so for ever.
void PowerSgdJob::replace_zero_columns(const MatrixBatch& batch, const at::Tensor& orthonormal) {
  const at::Tensor part = state_->part_of(state_->factor, batch);
  const at::Tensor fresh = at::empty_like(part);
  NormalNumbers(memory_->draws.next(), bits()).fill(fresh);
  part.copy_(at::where(orthonormal.ne(0).any(/*dim=*/1, /*keepdim=*/true), part, fresh));
  orthonormal.copy_(part);
  orthogonalize(orthonormal, options_.epsilon, bits());
}

void PowerSgdJob::multiply_into_p(const at::Tensor& p) const {
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    const MatrixBatch& batch = plan().batches[i];
    multiply_by_factor(matrices_[i], batch.q_of(q_), bits(), batch.p_of(p));
  }
}

void PowerSgdJob::multiply_into_q(const at::Tensor& q) const {
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    const MatrixBatch& batch = plan().batches[i];
    multiply_by_factor(matrices_[i].transpose(1, 2), batch.p_of(p_), bits(), batch.q_of(q));
  }
}

at::Tensor PowerSgdJob::plain_part(const at::Tensor& values) const {
  return values.narrow(0, sends_p() ? plain_begin_p_ : plain_begin_q_, plan().plain_numel);
}

void PowerSgdJob::send_first(engine::Transport& transport) {
  const at::Tensor& values = first().values();
  if (sends_p()) {
    multiply_into_p(values);
  } else {
    multiply_into_q(values);
  }
  const at::Tensor& own = sends_p() ? p_ : q_;
  if (options_.alternates) {
    own.copy_(values.narrow(0, 0, own.numel()));
  }
  // Between the two, a block that was not finite has left what is not.
  values.slice(0, own.numel(), sends_p() ? plain_begin_p_ : plain_begin_q_).zero_();
  plan().gather_plain(array_, plain_part(values));
  first().start(transport);
}

// The mean of P is as good as the sum, but for an epsilon beside its norm.
void PowerSgdJob::send_second(engine::Transport& transport) {
  look_at(first().values());
  const at::Tensor& own = second()->values();
  if (is_poisoned_) {
    own.zero_();  // The others wait for it.
  } else {
    p_.copy_(first().values().narrow(0, 0, plan().p_numel));
    if (options_.epsilon > 0) {
      p_.mul_(static_cast<double>(options_.world_size));
    }
    for (const MatrixBatch& batch : plan().batches) {
      orthogonalize(batch.p_of(p_), options_.epsilon, bits());
    }
    multiply_into_q(own);
  }
  at::Tensor kept = q_;
  kept.copy_(own);
  second()->start(transport);
}

void PowerSgdJob::look_at(const at::Tensor& mean) {
  is_poisoned_ = is_poisoned_ || !mean.isfinite().all().item<bool>();
}

void PowerSgdJob::end_step() {
  if (is_poisoned_) {
    bucket_.fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const bool last_is_p = options_.alternates && sends_p();
  const MeanArray& last = second() == nullptr ? first() : *second();
  const at::Tensor mean = last.values().narrow(0, 0, last_is_p ? plan().p_numel : plan().q_numel);
  const at::Tensor own = own_without_lost(last_is_p ? p_ : q_, last);
  if (options_.averaged_memory) {
    put_back_as_pytorch(last_is_p ? LowRankProduct{mean, q_} : LowRankProduct{p_, mean});
  } else if (last_is_p) {
    put_back({own, q_}, {mean, q_});
  } else {
    put_back({p_, own}, {p_, mean});
  }
  if (copy_.defined()) {
    bucket_.copy_(array_.narrow(0, 0, plan().numel));
  }
  state_->known.assign(state_->known.size(), options_.warm_start);
  if (options_.warm_start) {
    state_->factor = mean.clone();
    state_->is_p = last_is_p;
  }
}

// What the others have of this rank's numbers.
at::Tensor PowerSgdJob::own_without_lost(const at::Tensor& own, const MeanArray& sent) const {
  const at::Tensor lost = sent.lost();
  return lost.defined() ? own - lost.narrow(0, 0, own.numel()) : own;
}

void PowerSgdJob::put_back(const LowRankProduct& own, const LowRankProduct& mean) {
  for (const MatrixBatch& batch : plan().batches) {
    const auto part = [&](const LowRankProduct& all, int64_t i) {
      return LowRankProduct{batch.p_of(all.p)[i], batch.q_of(all.q)[i]};
    };
    for (int64_t i = 0; i < batch.count(); ++i) {
      const at::Tensor matrix = batch.matrix_of(array_, i);
      if (state_->residual.defined()) {
        replace_by_mean({matrix, batch.matrix_of(state_->residual, i), part(own, i), part(mean, i)});
      } else {
        const LowRankProduct of_mean = part(mean, i);
        multiply_factors(of_mean.p.unsqueeze(0), of_mean.q.unsqueeze(0), bits(), matrix.unsqueeze(0));
      }
    }
  }
  put_back_plain();
  const at::Tensor lost = state_->residual.defined() ? first().lost() : at::Tensor();
  if (lost.defined()) {
    plan().scatter_plain(plain_part(lost), state_->residual);
  }
}

void PowerSgdJob::put_back_as_pytorch(const LowRankProduct& mean) {
  const at::Tensor before = state_->residual.defined() ? array_.clone() : at::Tensor();
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    const MatrixBatch& batch = plan().batches[i];
    multiply_factors(batch.p_of(mean.p), batch.q_of(mean.q), bits(), matrices_[i]);
    for (int64_t k = 0; batch.count() > 1 && k < batch.count(); ++k) {
      batch.matrix_of(array_, k).copy_(matrices_[i][k]);
    }
  }
  put_back_plain();
  if (before.defined()) {
    at::sub_out(state_->residual, before, array_);
  }
}

void PowerSgdJob::put_back_plain() { plan().scatter_plain(plain_part(first().values()), array_); }

}  // namespace narrowcast::collectives

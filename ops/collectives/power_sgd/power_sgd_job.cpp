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

namespace narrowcast::collectives {
namespace {

AllReduceArrayOptions array_options(const PowerSgdJobOptions& options, int64_t numel, int64_t array) {
  return {.rank = options.rank,
          .world_size = options.world_size,
          .numel = numel,
          .dtype = options.arithmetic_dtype(),
          .format = options.format,
          .keeps_lost = true,
          .array = array,
          .link = options.link,
          .nodes = options.nodes};
}

at::Tensor zeros(int64_t numel, const PowerSgdJobOptions& options) {
  return at::zeros({numel}, options.arithmetic_dtype());
}

}  // namespace

PowerSgdJob::PowerSgdJob(PowerSgdJobOptions options, std::shared_ptr<LowRankState> state,
                         std::shared_ptr<PowerSgdJobMemory> memory)
    : options_(std::move(options)),
      state_(std::move(state)),
      memory_(std::move(memory)),
      sent_(sent_arrays(options_)),
      with_p_(std::make_unique<AllReduceArray>(array_options(options_, sent_.with_p.numel(), 0), memory_->first)),
      with_q_(
          std::make_unique<AllReduceArray>(array_options(options_, sent_.with_q.numel(), options_.alternates ? 0 : 1),
                                           options_.alternates ? memory_->first : memory_->second)),
      p_(zeros(plan().p_numel, options_)),
      q_(zeros(plan().q_numel, options_)),
      copy_(options_.needs_copy() ? zeros(plan().array_numel, options_) : at::Tensor()) {}

PowerSgdJob::~PowerSgdJob() = default;

int64_t PowerSgdJob::payload_bytes() const {
  return first().payload_bytes() + (second() == nullptr ? 0 : second()->payload_bytes());
}

int64_t PowerSgdJob::advances() const {
  return first().advances() + (second() == nullptr ? 0 : 1 + second()->advances());
}

bool PowerSgdJob::is_ready() { return advanced_ < first().advances() && first().is_ready(); }

void PowerSgdJob::start(engine::Transport& transport) {
  advanced_ = 0;
  is_poisoned_ = false;
  first().post_receives(transport);
  if (second() != nullptr) {
    second()->post_receives(transport);
  }
  take_array();
  take_factor();
  send_first(transport);
}

void PowerSgdJob::advance(engine::Transport& transport) {
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
}

at::Tensor PowerSgdJob::finish(engine::Transport& transport) {
  AllReduceArray& last = second() == nullptr ? first() : *second();
  last.finish(transport);
  look_at(last.values());
  end_step();
  array_ = at::Tensor();
  matrices_.clear();
  return std::exchange(bucket_, {});
}

void PowerSgdJob::give_up() {
  with_p_->give_up();
  with_q_->give_up();
}

void PowerSgdJob::take_array() {
  array_ = bucket_;
  if (copy_.defined()) {
    array_ = copy_;
    array_.narrow(0, 0, plan().numel).copy_(bucket_);
    array_.narrow(0, plan().numel, plan().array_numel - plan().numel).zero_();
  }
  matrices_ = take_matrices(plan(), *state_, array_);
}

void PowerSgdJob::take_factor() {
  const at::Tensor& orthonormal = kept(other_than(state_->sends()));
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

// Replaces columns of zeros by random ones; otherwise they would stay zero for ever. They arise if a gradient was zero
// or had fewer independent columns.
void PowerSgdJob::replace_zero_columns(const MatrixBatch& batch, const at::Tensor& orthonormal) {
  const at::Tensor part = state_->part_of(state_->factor, batch);
  const at::Tensor fresh = at::empty_like(part);
  NormalNumbers(memory_->draws.next(), bits()).fill(fresh);
  part.copy_(at::where(orthonormal.ne(0).any(/*dim=*/1, /*keepdim=*/true), part, fresh));
  orthonormal.copy_(part);
  orthogonalize(orthonormal, options_.epsilon, bits());
}

void PowerSgdJob::multiply_into(Factor result, const LowRankProduct& factors) const {
  multiply_batches(result, plan(), matrices_, factors,
                   [&](const at::Tensor& x, const at::Tensor& factor, const at::Tensor& product) {
                     multiply_by_factor(x, factor, bits(), product);
                   });
}

void PowerSgdJob::send_first(engine::Transport& transport) {
  const Factor sent = state_->sends();
  const SentArray& array = sent_.of(sent);
  const at::Tensor& values = first().values();
  multiply_into(sent, product_of(sent, values, kept(other_than(sent))));
  if (options_.alternates) {
    kept(sent).copy_(array.factor_of(values));
  }
  array.put_plain(plan(), array_, values);
  first().start(transport);
}

void PowerSgdJob::send_second(engine::Transport& transport) {
  look_at(first().values());
  const at::Tensor& own = second()->values();
  if (is_poisoned_) {
    own.zero_();  // The other ranks wait for this message.
  } else {
    p_.copy_(sent_.with_p.factor_of(first().values()));
    orthogonalize_mean(options_, p_, [&](const at::Tensor& part) { orthogonalize(part, options_.epsilon, bits()); });
    multiply_into(Factor::kQ, {p_, own});
  }
  kept(Factor::kQ).copy_(own);
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
  const Factor sent = last_sent(options_, *state_);
  const AllReduceArray& last = second() == nullptr ? first() : *second();
  const at::Tensor& other = kept(other_than(sent));
  const at::Tensor mean = sent_.of(sent).factor_of(last.values());
  if (options_.averaged_memory) {
    put_back_as_pytorch(product_of(sent, mean, other));
  } else {
    put_back(product_of(sent, own_without_lost(kept(sent), last), other), product_of(sent, mean, other));
  }
  if (copy_.defined()) {
    bucket_.copy_(array_.narrow(0, 0, plan().numel));
  }
  keep_factor(
      options_, sent, [&] { return mean.clone(); }, *state_);
}

// This rank's own factor as the other ranks decoded it.
at::Tensor PowerSgdJob::own_without_lost(const at::Tensor& own, const AllReduceArray& sent) const {
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
    plan().scatter_plain(sent_.of(state_->sends()).plain_of(lost), state_->residual);
  }
}

void PowerSgdJob::put_back_as_pytorch(const LowRankProduct& mean) {
  const at::Tensor before = state_->residual.defined() ? array_.clone() : at::Tensor();
  for (size_t i = 0; i < plan().batches.size(); ++i) {
    const MatrixBatch& batch = plan().batches[i];
    multiply_factors(batch.p_of(mean.p), batch.q_of(mean.q), bits(), matrices_[i]);
    batch.put_back(matrices_[i], array_);
  }
  put_back_plain();
  if (before.defined()) {
    at::sub_out(state_->residual, before, array_);
  }
}

void PowerSgdJob::put_back_plain() {
  plan().scatter_plain(sent_.of(state_->sends()).plain_of(first().values()), array_);
}

}  // namespace narrowcast::collectives

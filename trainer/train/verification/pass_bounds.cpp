#include "trainer/train/verification/pass_bounds.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <narrowcast/network_errors.h>
#include "hooks/hook_table.h"
#include "ops/collectives/mean/mean_exchange.h"

namespace narrowcast::verification {
namespace {

// The part of `values`, one for each element of the bucket, that belongs to its parameter number i.
at::Tensor part(const at::Tensor& values, const RecordedBucket& bucket, size_t i) {
  return values.narrow(0, bucket.offsets[i], bucket.parameters[i].numel());
}

// bool [numel]: of parameters with one dimension or none.
at::Tensor one_dimensional_elements(const RecordedBucket& bucket) {
  at::Tensor elements = at::zeros_like(bucket.gradients, at::kBool);
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    part(elements, bucket, i).fill_(bucket.parameters[i].dim() <= 1);
  }
  return elements;
}

}  // namespace

std::vector<at::Tensor> PassBounds::of_pass(const std::vector<RecordedBucket>& buckets,
                                            const std::vector<at::Tensor>& parameters) {
  const hooks::HookRow& hook = hooks::hook_row(ddp_.hook());
  const hooks::HookOptions options{group_, ddp_.wire(), ddp_.channel_size()};
  ByParameter bounds;
  for (const RecordedBucket& bucket : buckets) {
    hooks::SentBucket sent = {.gradients = bucket.gradients, .residual = gathered(bucket, residuals_)};
    if (ddp_.wire().exempt_one_dimensional) {
      sent.exempt = one_dimensional_elements(bucket);
    }
    hooks::ErrorTerms terms = hook.error_terms(sent, group_->getSize(), options);
    if (ddp_.wire().error_feedback) {
      terms.float32 += gathered(bucket, float32_);
      scatter(terms.float32, bucket, float32_);
      scatter(residual_after(terms), bucket, residuals_);
    }
    scatter(sum_over_ranks(terms.sum()), bucket, bounds);
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    result.push_back(bounds.at(parameter.unsafeGetTensorImpl()).view(parameter.sizes()));
  }
  return result;
}

// One number for each element of the bucket: 0 for those of parameters that are not there yet.
at::Tensor PassBounds::gathered(const RecordedBucket& bucket, const ByParameter& values) {
  at::Tensor result = at::zeros_like(bucket.gradients, at::kDouble);
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const auto found = values.find(bucket.parameters[i].unsafeGetTensorImpl());
    if (found != values.end()) {
      part(result, bucket, i).copy_(found->second);
    }
  }
  return result;
}

void PassBounds::scatter(const at::Tensor& values, const RecordedBucket& bucket, ByParameter& by_parameter) {
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    by_parameter[bucket.parameters[i].unsafeGetTensorImpl()] = part(values, bucket, i).clone();
  }
}

at::Tensor PassBounds::sum_over_ranks(at::Tensor term) const {
  std::vector<at::Tensor> sum = {std::move(term)};
  with_network_errors(group_->getRank(), "sum of the error bounds", [&] { group_->allreduce(sum)->wait(); });
  return sum[0];
}

// Whoever sends a mean keeps what is lacking of it. When the buckets are rebuilt, that becomes a residual of its own
// gradients, times the number of ranks. Taking it for one in any case is no less: it then is a part of the mean again.
at::Tensor PassBounds::residual_after(const hooks::ErrorTerms& terms) const {
  const int64_t world_size = group_->getSize();
  const collectives::Run shard = collectives::shard_of(group_->getRank(), world_size, terms.first_hop.numel());
  const at::Tensor of_mean = sum_over_ranks(terms.second_hop * world_size);
  at::Tensor residual = terms.first_hop * world_size;
  residual.narrow(0, shard.begin, shard.numel) += of_mean.narrow(0, shard.begin, shard.numel);
  return residual;
}

}  // namespace narrowcast::verification

#include "hooks/quantized_allreduce.h"

#include <ATen/ATen.h>

#include <narrowcast/errors.h>
#include "hooks/levels.h"

namespace narrowcast::hooks {
namespace {

constexpr int kPositionsPerBucket = 40;  // Elements of other buckets get other random numbers: 2^40 for each.

constexpr const char* kStep = "step";
constexpr const char* kLastBucket = "last_bucket";
constexpr const char* kLink = "link";  // Seconds per hop and per byte.

at::Tensor link_tensor(const collectives::LinkCost& link) {
  return at::tensor({link.seconds_per_hop, link.seconds_per_byte}, at::kDouble);
}

collectives::LinkCost link_of(const at::Tensor& tensor) {
  NARROWCAST_CHECK_INPUT(tensor.scalar_type() == at::kDouble && tensor.numel() == 2 &&
                             (tensor > 0).logical_and(tensor.isfinite()).all().item<bool>(),
                         "the hook's state '", kLink, "' is no seconds per hop and per byte");
  return {tensor[0].item<double>(), tensor[1].item<double>()};
}

}  // namespace

QuantizedAllReduceHook::QuantizedAllReduceHook(std::string_view name, const HookOptions& options)
    : MeanHook(name, options, nullptr), feedback_(options.process_group->getRank(), layout()) {}

HookState QuantizedAllReduceHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = feedback_.state(parameters);
  state.merge(CommHook::state(parameters));
  state.emplace(kStep, int_tensor(static_cast<int64_t>(step_)));
  state.emplace(kLastBucket, int_tensor(last_bucket_));
  if (link()) {
    state.emplace(kLink, link_tensor(*link()));
    add_nodes(state, layout());
  }
  return state;
}

void QuantizedAllReduceHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  const HookState& own = saved.own();
  step_ = static_cast<uint64_t>(int_of(own, kStep));
  last_bucket_ = own.contains(kLastBucket) ? int_of(own, kLastBucket) : kAfterAllBuckets;  // Older ones lack it.
  if (own.contains(kLink) && saved_nodes(saved) == layout()) {
    resume_link(link_of(own.at(kLink)));
  }
  if (wire_options().error_feedback) {
    const at::Tensor& any = parameters.at(0).tensor;
    stream()
        .run(any,
             [&] {
               feedback_.load_state(saved, parameters);
               return any;
             })
        ->wait();
  }
}

void QuantizedAllReduceHook::rescale_state(double factor) {
  const at::Tensor any = feedback_.any();
  if (any.defined()) {
    stream().run(any, [&] {
      feedback_.rescale(factor);
      return any;
    });
  }
}

collectives::MeanCall QuantizedAllReduceHook::make_call(const c10d::GradBucket& bucket, const Layout& layout) {
  const auto index = static_cast<int64_t>(bucket.getIndex());
  step_ += index <= last_bucket_ ? 1 : 0;
  last_bucket_ = index;
  const auto& seed = wire_options().stochastic_rounding_seed;
  const codec::wire::Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), step_,
                                       static_cast<uint64_t>(bucket.getIndex()) << kPositionsPerBucket};
  return {bucket.getBuffer(), rounding,
          wire_options().error_feedback ? feedback_.residuals(bucket, layout) : collectives::Residuals{}};
}

}  // namespace narrowcast::hooks

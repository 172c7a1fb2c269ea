#include "hooks/quantized_allreduce.h"

namespace narrowcast::hooks {
namespace {

constexpr int kPositionsPerBucket = 40;  // Elements of other buckets get other random numbers: 2^40 for each.

constexpr const char* kStep = "step";

}  // namespace

QuantizedAllReduceHook::QuantizedAllReduceHook(std::string_view name, const HookOptions& options)
    : MeanHook(name, options, nullptr), feedback_(options.process_group->getRank(), layout()) {}

HookState QuantizedAllReduceHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = feedback_.state(parameters);
  state.merge(CommHook::state(parameters));
  state.emplace(kStep, int_tensor(static_cast<int64_t>(step_)));
  return state;
}

void QuantizedAllReduceHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  step_ = static_cast<uint64_t>(int_of(saved.own(), kStep));
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

collectives::MeanCall QuantizedAllReduceHook::make_call(const c10d::GradBucket& bucket, const Layout& layout) {
  step_ += bucket.getIndex() == 0 ? 1 : 0;
  const auto& seed = wire_options().stochastic_rounding_seed;
  const codec::wire::Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), step_,
                                       static_cast<uint64_t>(bucket.getIndex()) << kPositionsPerBucket};
  return {bucket.getBuffer(), rounding,
          wire_options().error_feedback ? feedback_.residuals(bucket, layout) : collectives::Residuals{}};
}

}  // namespace narrowcast::hooks

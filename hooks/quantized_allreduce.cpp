#include "hooks/quantized_allreduce.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/bucket_check.h"

namespace narrowcast::hooks {
namespace {

using collectives::QuantizedMeanJob;

constexpr int kPositionsPerBucket = 40;  // Elements of other buckets get other random numbers: 2^40 for each.

constexpr const char* kStep = "step";

}  // namespace

QuantizedAllReduceHook::QuantizedAllReduceHook(std::string_view name, const HookOptions& options)
    : name_(name),
      group_(options.process_group),
      engine_(options.process_group),
      options_(options.wire),
      feedback_(options.process_group->getRank(), options.process_group->getSize()) {}

c10::intrusive_ptr<c10::ivalue::Future> QuantizedAllReduceHook::runHook(c10d::GradBucket& bucket) {
  check_bucket(name(), bucket);
  const bool needs_layout = options_.error_feedback || options_.exempt_one_dimensional;
  const Layout layout = needs_layout ? layout_of(bucket) : Layout{};
  return bucket.getBuffer().is_cpu() ? run_on_engine(bucket, layout) : run_on_stream(bucket, layout);
}

c10::intrusive_ptr<c10::ivalue::Future> QuantizedAllReduceHook::run_on_engine(const c10d::GradBucket& bucket,
                                                                              const Layout& layout) {
  Scratch& scratch = scratch_of(bucket, layout);
  check_completed(name(), bucket, scratch.last);
  scratch.job->set_call(make_call(bucket, layout));
  count_payload(scratch.job->payload_bytes());
  auto future = engine_.get().submit(scratch.job);
  scratch.last = future;
  return future;
}

// All buffers are made, used and given away on the hook's stream.
c10::intrusive_ptr<c10::ivalue::Future> QuantizedAllReduceHook::run_on_stream(const c10d::GradBucket& bucket,
                                                                              const Layout& layout) {
  return stream_.run(bucket.getBuffer(), [&] {
    collectives::StreamMean& mean = mean_of(bucket, layout);
    count_payload(mean.payload_bytes());
    mean.enqueue(make_call(bucket, layout));
    return bucket.getBuffer();
  });
}

HookState QuantizedAllReduceHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = feedback_.state(parameters);
  state.merge(CommHook::state(parameters));
  state.emplace(kStep, int_tensor(static_cast<int64_t>(step_)));
  return state;
}

void QuantizedAllReduceHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  step_ = static_cast<uint64_t>(int_of(saved.own(), kStep));
  if (options_.error_feedback) {
    const at::Tensor& any = parameters.at(0).tensor;
    stream_
        .run(any,
             [&] {
               feedback_.load_state(saved, parameters);
               return any;
             })
        ->wait();
  }
}

collectives::QuantizedMeanOptions QuantizedAllReduceHook::mean_options(const c10d::GradBucket& bucket,
                                                                       const Layout& layout) const {
  return {.name = c10::str(name(), " of bucket ", bucket.getIndex()),
          .rank = group_->getRank(),
          .world_size = group_->getSize(),
          .numel = bucket.getBuffer().numel(),
          .format = options_.format.value(),
          .exact =
              options_.exempt_one_dimensional ? one_dimensional_segments(layout) : std::vector<collectives::Segment>{}};
}

QuantizedAllReduceHook::Scratch& QuantizedAllReduceHook::scratch_of(const c10d::GradBucket& bucket,
                                                                    const Layout& layout) {
  const auto options = mean_options(bucket, layout);
  const auto make_job = [&] { return std::make_shared<QuantizedMeanJob>(options, memory_); };
  Scratch& scratch = scratch_.get(bucket, [&] {
    return Scratch{make_job(), c10::weak_intrusive_ptr<Future>(c10::intrusive_ptr<Future>())};
  });
  if (scratch.job->exact() != options.exact) {  // Rebuilt, and by chance of the same size.
    scratch.job = make_job();
  }
  return scratch;
}

collectives::StreamMean& QuantizedAllReduceHook::mean_of(const c10d::GradBucket& bucket, const Layout& layout) {
  const auto options = mean_options(bucket, layout);
  const auto make_mean = [&] {
    return std::make_unique<collectives::StreamMean>(group_, options, bucket.getBuffer().device());
  };
  auto& mean = means_.get(bucket, make_mean);
  if (mean->exact() != options.exact) {
    mean = make_mean();
  }
  return *mean;
}

collectives::MeanCall QuantizedAllReduceHook::make_call(const c10d::GradBucket& bucket, const Layout& layout) {
  step_ += bucket.getIndex() == 0 ? 1 : 0;
  const auto& seed = options_.stochastic_rounding_seed;
  const codec::wire::Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), step_,
                                       static_cast<uint64_t>(bucket.getIndex()) << kPositionsPerBucket};
  return {bucket.getBuffer(), rounding,
          options_.error_feedback ? feedback_.residuals(bucket, layout) : collectives::Residuals{}};
}

}  // namespace narrowcast::hooks

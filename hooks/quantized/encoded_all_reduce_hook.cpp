#include "hooks/quantized/encoded_all_reduce_hook.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/row/levels.h"
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/codec/affine_codec.h"
#include "ops/collectives/all_reduce/codec/codec.h"

namespace narrowcast::hooks {

using collectives::AllReduceJob;

namespace {

std::shared_ptr<const node::FoundNodes> nodes_of(const HookOptions& options,
                                                 const collectives::AllReduceCodecFactory& codec) {
  return codec == nullptr ? find_hook_nodes(options) : node::FoundNodes::flat(options.process_group->getSize());
}

}  // namespace

EncodedAllReduceHook::EncodedAllReduceHook(const HookRow& row, const HookOptions& options,
                                           collectives::AllReduceCodecFactory codec)
    : TableHook(row),
      options_(options),
      codec_(std::move(codec)),
      nodes_(nodes_of(options, codec_)),
      link_(codec_ ? RouteLink() : RouteLink(options, layout())),
      engine_(options),
      memory_(collectives::AllReduceJob::memory_of(options.process_group)),
      groups_(make_stream_groups(options, layout())) {
  for (auto& workspace : workspaces_) {
    workspace = std::make_shared<collectives::StreamWorkspace>();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> EncodedAllReduceHook::runHook(c10d::GradBucket& bucket) {
  const bool needs_parameters = options_.wire.error_feedback || options_.wire.exempt_one_dimensional;
  const ParameterRanges parameters = needs_parameters ? parameter_ranges(bucket) : ParameterRanges{};
  return bucket.getBuffer().is_cpu() ? run_on_engine(bucket, parameters) : run_on_stream(bucket, parameters);
}

c10::intrusive_ptr<c10::ivalue::Future> EncodedAllReduceHook::run_on_engine(const c10d::GradBucket& bucket,
                                                                            const ParameterRanges& parameters) {
  Scratch& scratch = scratch_of(bucket, parameters);
  scratch.last.wait();
  scratch.job->set_call(make_call(bucket, parameters));
  count_exchange(bucket, scratch.bytes);
  return scratch.last.set(scratch.engine->submit(scratch.job));
}

// A variable format deals out the elements of a bucket, and its residuals count in that order. Shards are runs of
// elements, so the array's own order is used for them.
std::vector<int64_t> EncodedAllReduceHook::average_shards(std::optional<ShardRounding> rounding) {
  if (codec_ || options_.device.value_or(at::kCPU) != at::kCPU) {
    return {};
  }
  const WireFormat format = options_.wire.format.value();
  TORCH_CHECK_VALUE(!rounding || !options_.wire.error_feedback || codec::wire::can_be_split(format), "hook ", name(),
                    ": error_feedback in format ", format,
                    " is not possible with an optimizer that is sharded over all ranks");
  if (!rounding) {
    result_ = collectives::Result::kWhole;
  } else {
    result_ = rounding == ShardRounding::kOnce ? collectives::Result::kShard : collectives::Result::kShardOfWhole;
  }
  scratch_ = {};
  return layout().node_of_rank();
}

std::string EncodedAllReduceHook::nodes() const { return codec_ ? "" : nodes_text(*nodes_); }

// All buffers are created, used and released on the bucket's stream; a residual may come from another bucket's stream.
c10::intrusive_ptr<c10::ivalue::Future> EncodedAllReduceHook::run_on_stream(const c10d::GradBucket& bucket,
                                                                            const ParameterRanges& parameters) {
  check_bucket(name(), bucket, options_.device);
  const auto enqueue = [&] {
    StreamScratch& scratch = stream_scratch_of(bucket, parameters);
    scratch.mean->enqueue(make_call(bucket, parameters));
    count_exchange(bucket, scratch.bytes);
    return bucket.getBuffer();
  };
  const size_t place = HookStreams::place_of(bucket.getIndex());
  return new_buckets_.notice(bucket, parameters) ? streams_.run_alone(place, bucket.getBuffer(), enqueue)
                                                 : streams_.run(place, bucket.getBuffer(), enqueue);
}

void EncodedAllReduceHook::run_between_steps(const at::Tensor& tensor, const std::function<void()>& body) {
  const auto run = [&] {
    body();
    return tensor;
  };
  streams_.run_alone(0, tensor, run)->wait();
  new_buckets_ = {};  // Parameters may have changed buckets: the next step runs one bucket after the other.
}

// A codec has channels, or one channel for the whole bucket.
int64_t EncodedAllReduceHook::message_bytes(int64_t numel, const std::vector<collectives::ElementRange>& exact) const {
  if (codec_) {
    return collectives::affine_message_bytes(numel, options_.channel_size.value_or(std::max<int64_t>(1, numel)));
  }
  int64_t exempt = 0;
  for (const collectives::ElementRange& range : exact) {
    exempt += range.numel;
  }
  return encoded_size(numel, options_.wire.format.value()) + encoded_size(exempt, WireFormat::kFp32);
}

collectives::AllReduceCall EncodedAllReduceHook::make_call(const c10d::GradBucket& bucket,
                                                           const ParameterRanges& /*parameters*/) {
  return {bucket.getBuffer(), {}, {}};
}

std::vector<collectives::ElementRange> EncodedAllReduceHook::exact_ranges(const ParameterRanges& parameters) const {
  return options_.wire.exempt_one_dimensional ? one_dimensional_ranges(parameters)
                                              : std::vector<collectives::ElementRange>();
}

collectives::AllReduceJobOptions EncodedAllReduceHook::job_options(const c10d::GradBucket& bucket,
                                                                   std::vector<collectives::ElementRange> exact) const {
  collectives::AllReduceJobOptions job{.name = c10::str(name(), " of bucket ", bucket.getIndex()),
                                       .rank = options_.process_group->getRank(),
                                       .world_size = options_.process_group->getSize(),
                                       .numel = bucket.getBuffer().numel(),
                                       .exact = std::move(exact)};
  if (codec_) {
    job.codec = codec_;
    job.all_gather = c10::str("all-gather of hook ", name());
  } else {
    job.format = options_.wire.format.value();
    job.nodes = nodes_;
    job.link = link_.cost();
    job.result = result_;
  }
  return job;
}

EncodedAllReduceHook::Scratch& EncodedAllReduceHook::scratch_of(const c10d::GradBucket& bucket,
                                                                const ParameterRanges& parameters) {
  const auto exact = exact_ranges(parameters);
  const auto make_job = [&](Scratch& scratch) {
    scratch.job = std::make_shared<AllReduceJob>(job_options(bucket, exact), memory_);
    scratch.bytes = {scratch.job->payload_bytes(), message_bytes(bucket.getBuffer().numel(), exact)};
  };
  Scratch& scratch = scratch_.get(bucket, [&] {
    check_bucket(name(), bucket, options_.device);
    Scratch made;
    made.engine = &engine_.get();
    make_job(made);
    return made;
  });
  if (scratch.job->exact() != exact) {  // The bucket was rebuilt with the same size.
    make_job(scratch);
  }
  return scratch;
}

EncodedAllReduceHook::StreamScratch& EncodedAllReduceHook::stream_scratch_of(const c10d::GradBucket& bucket,
                                                                             const ParameterRanges& parameters) {
  const auto exact = exact_ranges(parameters);
  const auto make = [&] {
    const auto& workspace = workspaces_.at(HookStreams::place_of(bucket.getIndex()));
    auto mean = std::make_unique<collectives::StreamAllReduce>(
        collectives::StreamRanks{options_.process_group, groups_, order_}, job_options(bucket, exact),
        bucket.getBuffer().device(), workspace);
    const ExchangedBytes bytes{mean->payload_bytes(), message_bytes(bucket.getBuffer().numel(), exact)};
    return StreamScratch{std::move(mean), bytes};
  };
  StreamScratch& scratch = stream_scratch_.get(bucket, make);
  if (scratch.mean->exact() != exact) {
    scratch = make();
  }
  return scratch;
}

std::unique_ptr<CommHook> make_quantize_per_tensor_hook(const HookRow& row, const HookOptions& options) {
  return std::make_unique<EncodedAllReduceHook>(row, options, collectives::affine_codec(std::nullopt));
}

std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookRow& row, const HookOptions& options) {
  return std::make_unique<EncodedAllReduceHook>(row, options, collectives::affine_codec(options.channel_size.value()));
}

namespace {

constexpr int kPositionsPerBucket = 40;  // Each bucket has 2^40 random numbers, which differ between buckets.

constexpr const char* kStep = "step";
constexpr const char* kLastBucket = "last_bucket";

}  // namespace

QuantizedAllReduceHook::QuantizedAllReduceHook(const HookRow& row, const HookOptions& options)
    : EncodedAllReduceHook(row, options, nullptr),
      feedback_(options.process_group->getRank(), layout(), options.wire.format.value()) {}

HookState QuantizedAllReduceHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = feedback_.state(parameters);
  state.merge(CommHook::state(parameters));
  state.emplace(kStep, int_tensor(static_cast<int64_t>(step_)));
  state.emplace(kLastBucket, int_tensor(last_bucket_));
  link().add_to(state);
  return state;
}

void QuantizedAllReduceHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  const HookState& own = saved.own();
  step_ = static_cast<uint64_t>(int_of(own, kStep));
  last_bucket_ = own.contains(kLastBucket) ? int_of(own, kLastBucket) : kAfterAllBuckets;  // Older states lack it.
  link().resume(saved);
  if (wire_options().error_feedback) {
    TORCH_CHECK_VALUE(!parameters.empty(), "hook ", name(), ": its state is of parameters, but none are given");
    run_between_steps(parameters.at(0).tensor, [&] { feedback_.load_state(saved, parameters); });
  }
}

void QuantizedAllReduceHook::rescale_state(double factor) {
  const at::Tensor any = feedback_.any();
  if (!any.defined()) {
    feedback_.rescale(factor);  // Loaded residuals of buckets that have not come yet are on no stream.
    return;
  }
  run_between_steps(any, [&] { feedback_.rescale(factor); });
}

collectives::AllReduceCall QuantizedAllReduceHook::make_call(const c10d::GradBucket& bucket,
                                                             const ParameterRanges& parameters) {
  const auto index = static_cast<int64_t>(bucket.getIndex());
  step_ += index <= last_bucket_ ? 1 : 0;
  last_bucket_ = index;
  const auto& seed = wire_options().stochastic_rounding_seed;
  const codec::wire::Rounding rounding{seed.has_value(), static_cast<uint64_t>(seed.value_or(0)), step_,
                                       static_cast<uint64_t>(bucket.getIndex()) << kPositionsPerBucket};
  return {bucket.getBuffer(), rounding,
          wire_options().error_feedback ? feedback_.residuals(bucket, parameters) : collectives::Residuals{}};
}

}  // namespace narrowcast::hooks

#include "hooks/mean_hook.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/levels.h"
#include "ops/collectives/mean/affine_codec.h"

namespace narrowcast::hooks {

using collectives::QuantizedMeanJob;

namespace {

std::shared_ptr<const node::FoundNodes> nodes_of(const HookOptions& options,
                                                 const collectives::MeanCodecFactory& codec) {
  return codec == nullptr ? find_hook_nodes(options) : node::FoundNodes::flat(options.process_group->getSize());
}

}  // namespace

MeanHook::MeanHook(const HookRow& row, const HookOptions& options, collectives::MeanCodecFactory codec)
    : TableHook(row),
      options_(options),
      codec_(std::move(codec)),
      nodes_(nodes_of(options, codec_)),
      link_(codec_ ? RouteLink() : RouteLink(options, layout())),
      engine_(options.process_group),
      groups_(make_stream_groups(options, layout())) {
  for (auto& workspace : workspaces_) {
    workspace = std::make_shared<collectives::StreamWorkspace>();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> MeanHook::runHook(c10d::GradBucket& bucket) {
  check_bucket(name(), bucket);
  const bool needs_layout = options_.wire.error_feedback || options_.wire.exempt_one_dimensional;
  const Layout layout = needs_layout ? layout_of(bucket) : Layout{};
  return bucket.getBuffer().is_cpu() ? run_on_engine(bucket, layout) : run_on_stream(bucket, layout);
}

c10::intrusive_ptr<c10::ivalue::Future> MeanHook::run_on_engine(const c10d::GradBucket& bucket, const Layout& layout) {
  Scratch& scratch = scratch_of(bucket, layout);
  check_completed(name(), bucket, scratch.last);
  scratch.job->set_call(make_call(bucket, layout));
  count_exchange(bucket, {.payload = scratch.job->payload_bytes(), .message = message_bytes(bucket, layout)});
  auto future = engine_.get().submit(scratch.job);
  scratch.last = future;
  return future;
}

std::string MeanHook::nodes() const { return codec_ ? "" : nodes_text(*nodes_); }

// All buffers are made, used and given away on the bucket's stream; a residual may come from another bucket's.
c10::intrusive_ptr<c10::ivalue::Future> MeanHook::run_on_stream(const c10d::GradBucket& bucket, const Layout& layout) {
  const auto enqueue = [&] {
    collectives::StreamMean& mean = mean_of(bucket, layout);
    mean.enqueue(make_call(bucket, layout));
    count_exchange(bucket, {.payload = mean.payload_bytes(), .message = message_bytes(bucket, layout)});
    return bucket.getBuffer();
  };
  const size_t place = HookStreams::place_of(bucket.getIndex());
  return new_layouts_.notice(bucket, layout) ? streams_.run_alone(place, bucket.getBuffer(), enqueue)
                                             : streams_.run(place, bucket.getBuffer(), enqueue);
}

void MeanHook::run_between_steps(const at::Tensor& tensor, const std::function<void()>& body) {
  const auto run = [&] {
    body();
    return tensor;
  };
  streams_.run_alone(0, tensor, run)->wait();
  new_layouts_ = {};  // What belonged to one bucket may be another's now: the next step runs bucket after bucket.
}

// Codecs are those of channels, or of one for the whole bucket.
int64_t MeanHook::message_bytes(const c10d::GradBucket& bucket, const Layout& layout) const {
  const int64_t numel = bucket.getBuffer().numel();
  if (codec_) {
    return collectives::affine_message_bytes(numel, options_.channel_size.value_or(std::max<int64_t>(1, numel)));
  }
  int64_t exempt = 0;
  for (const ParameterSegment& parameter : layout) {
    exempt += options_.wire.exempt_one_dimensional && parameter.one_dimensional ? parameter.segment.numel : 0;
  }
  return encoded_size(numel, options_.wire.format.value()) + encoded_size(exempt, WireFormat::kFp32);
}

collectives::MeanCall MeanHook::make_call(const c10d::GradBucket& bucket, const Layout& /*layout*/) {
  return {bucket.getBuffer(), {}, {}};
}

collectives::QuantizedMeanOptions MeanHook::mean_options(const c10d::GradBucket& bucket, const Layout& layout) const {
  collectives::QuantizedMeanOptions mean{.name = c10::str(name(), " of bucket ", bucket.getIndex()),
                                         .rank = options_.process_group->getRank(),
                                         .world_size = options_.process_group->getSize(),
                                         .numel = bucket.getBuffer().numel()};
  if (codec_) {
    mean.codec = codec_;
    mean.all_gather = c10::str("all-gather of hook ", name());
  } else {
    mean.format = options_.wire.format.value();
    mean.nodes = nodes_;
    mean.link = link_.cost();
  }
  if (options_.wire.exempt_one_dimensional) {
    mean.exact = one_dimensional_segments(layout);
  }
  return mean;
}

MeanHook::Scratch& MeanHook::scratch_of(const c10d::GradBucket& bucket, const Layout& layout) {
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

collectives::StreamMean& MeanHook::mean_of(const c10d::GradBucket& bucket, const Layout& layout) {
  const auto options = mean_options(bucket, layout);
  const auto make_mean = [&] {
    const auto& workspace = workspaces_.at(HookStreams::place_of(bucket.getIndex()));
    return std::make_unique<collectives::StreamMean>(collectives::StreamRanks{options_.process_group, groups_, order_},
                                                     options, bucket.getBuffer().device(), workspace);
  };
  auto& mean = means_.get(bucket, make_mean);
  if (mean->exact() != options.exact) {
    mean = make_mean();
  }
  return *mean;
}

std::unique_ptr<CommHook> make_quantize_per_tensor_hook(const HookRow& row, const HookOptions& options) {
  return std::make_unique<MeanHook>(row, options, collectives::affine_codec(std::nullopt));
}

std::unique_ptr<CommHook> make_quantize_per_channel_hook(const HookRow& row, const HookOptions& options) {
  return std::make_unique<MeanHook>(row, options, collectives::affine_codec(options.channel_size.value()));
}

namespace {

constexpr int kPositionsPerBucket = 40;  // Elements of other buckets get other random numbers: 2^40 for each.

constexpr const char* kStep = "step";
constexpr const char* kLastBucket = "last_bucket";

}  // namespace

QuantizedAllReduceHook::QuantizedAllReduceHook(const HookRow& row, const HookOptions& options)
    : MeanHook(row, options, nullptr),
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
  last_bucket_ = own.contains(kLastBucket) ? int_of(own, kLastBucket) : kAfterAllBuckets;  // Older ones lack it.
  link().resume(saved);
  if (wire_options().error_feedback) {
    run_between_steps(parameters.at(0).tensor, [&] { feedback_.load_state(saved, parameters); });
  }
}

void QuantizedAllReduceHook::rescale_state(double factor) {
  const at::Tensor any = feedback_.any();
  if (!any.defined()) {
    feedback_.rescale(factor);  // Residuals that were loaded for buckets that have not come yet are on no stream.
    return;
  }
  run_between_steps(any, [&] { feedback_.rescale(factor); });
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

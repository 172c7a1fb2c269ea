#include "hooks/gathered_mean_hook.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "hooks/bucket_check.h"

namespace narrowcast::hooks {

GatheredMeanHook::GatheredMeanHook(const HookOptions& options, Format format)
    : format_(std::move(format)), group_(options.process_group), engine_(options.process_group) {}

c10::intrusive_ptr<c10::ivalue::Future> GatheredMeanHook::runHook(c10d::GradBucket& bucket) {
  check_bucket(name(), bucket);
  return bucket.getBuffer().is_cpu() ? run_on_engine(bucket) : run_on_stream(bucket);
}

c10::intrusive_ptr<c10::ivalue::Future> GatheredMeanHook::run_on_stream(const c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  return stream_.run(buffer, [&] {
    count_payload(enqueue_gathered_mean(group_, std::string(name()), format_.tensor_codec, buffer));
    return buffer;
  });
}

c10::intrusive_ptr<c10::ivalue::Future> GatheredMeanHook::run_on_engine(const c10d::GradBucket& bucket) {
  Scratch& scratch = scratch_.get(bucket, [&] { return make_scratch(bucket); });
  check_completed(name(), bucket, scratch.last);
  scratch.job->set_bucket(bucket.getBuffer());
  count_payload(scratch.job->payload_bytes());
  auto future = engine_.get().submit(scratch.job);
  scratch.last = future;
  return future;
}

GatheredMeanHook::Scratch GatheredMeanHook::make_scratch(const c10d::GradBucket& bucket) const {
  GatheredMeanJobOptions options{c10::str(name(), " of bucket ", bucket.getIndex()), group_->getRank(),
                                 group_->getSize(), bucket.getBuffer().numel()};
  return {std::make_shared<GatheredMeanJob>(format_.make_codec(), std::move(options)),
          c10::weak_intrusive_ptr<c10::ivalue::Future>(c10::intrusive_ptr<c10::ivalue::Future>())};
}

}  // namespace narrowcast::hooks

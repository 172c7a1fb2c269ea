// What the quantised reference hooks share: everything but the codec.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string_view>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/bucket_codec.h"
#include "hooks/cpu_engine.h"
#include "hooks/gathered_mean.h"
#include "hooks/gathered_mean_job.h"
#include "hooks/hook_stream.h"
#include "hooks/per_bucket.h"

namespace narrowcast::hooks {

// Replaces each bucket by the mean of what all ranks' codecs make of it: of buckets
// on the CPU on the engine of the process group, of those on a GPU on a stream of
// the hook's own. Takes contiguous buckets of any floating type; others are a
// c10::ValueError or c10::TypeError.
class GatheredMeanHook final : public CommHook {
 public:
  struct Format {
    std::string_view name;
    std::function<std::unique_ptr<BucketCodec>()> make_codec;  // On the CPU.
    TensorCodec tensor_codec;                                  // On a GPU.
  };
  GatheredMeanHook(const HookOptions& options, Format format);

  std::string_view name() const override { return format_.name; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  struct Scratch {
    std::shared_ptr<GatheredMeanJob> job;
    c10::weak_intrusive_ptr<c10::ivalue::Future> last;
  };
  c10::intrusive_ptr<c10::ivalue::Future> run_on_engine(const c10d::GradBucket& bucket);
  c10::intrusive_ptr<c10::ivalue::Future> run_on_stream(const c10d::GradBucket& bucket);
  Scratch make_scratch(const c10d::GradBucket& bucket) const;

  const Format format_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  CpuEngine engine_;
  HookStream stream_;
  PerBucket<Scratch> scratch_;
};

}  // namespace narrowcast::hooks

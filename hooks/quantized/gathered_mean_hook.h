// What the quantised reference hooks share: everything but the codec.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string_view>

#include "hooks/comm_hook.h"
#include "hooks/hook_options.h"
#include "hooks/per_bucket.h"
#include "hooks/quantized/bucket_codec.h"
#include "hooks/quantized/mean_exchange.h"
#include "ops/engine/engine.h"

namespace narrowcast::hooks {

// Replaces each bucket by the mean of what all ranks' codecs make of it, on the
// engine of the process group. Takes contiguous CPU buckets of any floating type;
// others are a c10::ValueError or c10::TypeError.
class GatheredMeanHook final : public CommHook {
 public:
  struct Format {
    std::string_view name;
    std::unique_ptr<BucketCodec> (*make_codec)();
  };
  GatheredMeanHook(const HookOptions& options, Format format);

  std::string_view name() const override { return format_.name; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  struct Scratch {
    std::shared_ptr<MeanExchange> exchange;
    c10::weak_intrusive_ptr<c10::ivalue::Future> last;
  };
  Scratch make_scratch(const c10d::GradBucket& bucket) const;

  const Format format_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::shared_ptr<engine::Engine> engine_;
  PerBucket<Scratch> scratch_;
};

}  // namespace narrowcast::hooks

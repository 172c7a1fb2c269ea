#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/bucket_layout.h"
#include "hooks/cpu_engine.h"
#include "hooks/error_feedback.h"
#include "hooks/hook_stream.h"
#include "hooks/per_bucket.h"
#include "ops/collectives/mean/quantized_mean_job.h"
#include "ops/collectives/mean/stream_mean.h"

namespace narrowcast::hooks {

// "quantized_allreduce": averages buckets in a wire format (docs/wire_format.md), in one or two hops
// (ops/collectives/mean): of buckets on the CPU on the engine of the process group, of those on a GPU on a stream of
// the hook's own. Sends the same share of float32's bytes for any number of ranks. Takes contiguous buckets of any
// floating type; others are a c10::ValueError or c10::TypeError. With one rank a bucket stays as it is. Has several
// names: the factory knows them, and their formats.
class QuantizedAllReduceHook final : public CommHook {
 public:
  // The options say a format. `name` outlives the hook.
  QuantizedAllReduceHook(std::string_view name, const HookOptions& options);

  std::string_view name() const override { return name_; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;

 private:
  using Future = c10::ivalue::Future;
  struct Scratch {
    std::shared_ptr<collectives::QuantizedMeanJob> job;
    c10::weak_intrusive_ptr<Future> last;
  };
  using Layout = std::vector<ParameterSegment>;
  c10::intrusive_ptr<Future> run_on_engine(const c10d::GradBucket& bucket, const Layout& layout);
  c10::intrusive_ptr<Future> run_on_stream(const c10d::GradBucket& bucket, const Layout& layout);
  collectives::QuantizedMeanOptions mean_options(const c10d::GradBucket& bucket, const Layout& layout) const;
  Scratch& scratch_of(const c10d::GradBucket& bucket, const Layout& layout);
  collectives::StreamMean& mean_of(const c10d::GradBucket& bucket, const Layout& layout);
  collectives::MeanCall make_call(const c10d::GradBucket& bucket, const Layout& layout);

  const std::string_view name_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  CpuEngine engine_;
  const WireOptions options_;
  const collectives::JobMemory memory_;
  PerBucket<Scratch> scratch_;
  HookStream stream_;
  PerBucket<std::unique_ptr<collectives::StreamMean>> means_;  // Of buckets on a GPU.
  ErrorFeedback feedback_;
  uint64_t step_ = 0;  // Steps whose first bucket has come.
};

}  // namespace narrowcast::hooks

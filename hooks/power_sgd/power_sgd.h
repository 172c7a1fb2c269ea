// PyTorch's PowerSGD hooks: gradients as the product of two narrow matrices.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/power_sgd/power_sgd_states.h"
#include "hooks/row/bucket.h"
#include "hooks/row/execution.h"
#include "hooks/row/hook_row.h"
#include "hooks/row/levels.h"
#include "ops/collectives/all_reduce/stream/stream_groups.h"
#include "ops/collectives/power_sgd/power_sgd_job.h"
#include "ops/collectives/power_sgd/stream_power_sgd.h"
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::hooks {

// "power_sgd", "batched_power_sgd" and the same with "_rank2". The first PowerSgdOptions::start steps are PyTorch's
// allreduce_hook, later steps powerSGD_hook or batched_powerSGD_hook. P, Q and the rest are averaged in two levels if
// ranks share nodes. CPU buckets use the engine of the process group, GPU buckets a separate stream. Float64 uses one
// level; it is a c10::ValueError if the options request two. Buckets without parameters are not compressed by layer.
//
// Payload of a compressed step with N nodes: the messages of P, Q and the uncompressed elements, each N - 1 times in
// one hop or 2 (N - 1) / N times in two, depending on the link. With several ranks on a node, a rank sends only the
// ranges that it owns.
class PowerSgdHook final : public TableHook {
 public:
  // A collective. The options must contain a rank.
  PowerSgdHook(const HookRow& row, const HookOptions& options);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  std::string nodes() const override { return nodes_text(*nodes_); }

  // Adds to the state of PowerSgdStates:
  //   iterations  int64: steps so far
  //   draws       int64: seeds drawn so far
  //   rank        int64: rank of the approximation
  //   alternates  int64: whether steps alternate
  //   batched     int64: whether a bucket is one matrix
  // and the link, as RouteLink.
  HookState state(const std::vector<NamedParameter>& parameters) const override;
  // Redistributes the residuals of another world. CorruptInputError also for state of another rank or kind.
  void load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) override;
  void rescale_state(double factor) override;

 private:
  using Future = c10::ivalue::Future;
  // State of a bucket on the CPU, kept from step to step.
  struct Scratch {
    std::shared_ptr<collectives::PowerSgdJob> job;
    int64_t message_bytes = 0;
    LastExchange last;
  };
  // State of a bucket on a GPU, kept likewise.
  struct StreamScratch {
    std::unique_ptr<collectives::PowerSgdStream> stream;
    int64_t message_bytes = 0;
  };
  c10::intrusive_ptr<Future> average(const c10d::GradBucket& bucket);
  c10::intrusive_ptr<Future> compress_on_engine(const c10d::GradBucket& bucket);
  c10::intrusive_ptr<Future> compress_on_stream(const c10d::GradBucket& bucket);
  PowerSgdStates::BucketState state_of(const c10d::GradBucket& bucket);
  collectives::PowerSgdJobOptions job_options(const c10d::GradBucket& bucket,
                                              const collectives::CompressionPlan& plan) const;
  int64_t rank() const { return options_.power_sgd.rank.value(); }

  const HookOptions options_;
  const std::shared_ptr<const node::FoundNodes> nodes_;
  RouteLink link_;
  CpuEngine engine_;
  std::shared_ptr<collectives::PowerSgdJobMemory> memory_;
  PowerSgdStates states_;
  PerBucket<Scratch> scratch_;
  HookStream stream_;
  // For buckets on a GPU:
  const std::shared_ptr<const collectives::StreamGroups> groups_;  // Null for one level.
  PerBucket<StreamScratch> stream_scratch_;
  int64_t iterations_ = 0;
};

// c10::ValueError naming an option that is out of range, contradicts another one, or has no effect with others. The
// options must contain a rank.
void check_power_sgd(const PowerSgdOptions& options);

// The rows of the PowerSGD hooks for the table.
std::vector<HookRow> power_sgd_rows();

}  // namespace narrowcast::hooks

// Problems for the tests of gradient verification.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/mlp.h>
#include "models/bundled/ddp_comm_hook_task.h"
#include "trainer/train/verification/hook_run.h"

namespace narrowcast::testing {

// One replica and one batch per rank. Create it before the threads: they share LibTorch's default generator.
struct ProblemParts {
  std::vector<std::shared_ptr<models::Model>> models;
  std::vector<models::Batch> batches;
  DdpOptions ddp;
  std::vector<double> weights = {};  // empty: equal

  verification::GradientProblem of_rank(int64_t rank, const ProcessGroupPtr& group) const {
    return {.model = models[static_cast<size_t>(rank)],
            .batch = batches[static_cast<size_t>(rank)],
            .group = group,
            .ddp = ddp,
            .weight = weights.empty() ? std::nullopt : std::optional(weights[static_cast<size_t>(rank)])};
  }
};

// An MLP of about 26,000 parameters (85,000 with 256 hidden units), in several buckets of 32 KiB. The layout changes
// after the first pass.
inline ProblemParts mlp_parts(int64_t world_size, int64_t hidden = 128) {
  ProblemParts parts;
  parts.ddp = DdpOptions().bucket_cap_mb(1.0 / 32);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    at::manual_seed(3);
    parts.models.push_back(
        std::make_shared<models::Mlp>(models::MlpOptions{.inputs = 64, .hidden = hidden, .layers = 2}));
    at::manual_seed(10 + static_cast<uint64_t>(rank));
    parts.batches.push_back({at::randint(0, 256, {4, 64}, at::kByte), at::randint(0, 10, {4}, at::kLong)});
  }
  return parts;
}

// Ranks have unequal numbers of samples: rank r has r + 1.
inline ProblemParts mlp_parts_with_shares(int64_t world_size) {
  ProblemParts parts = mlp_parts(world_size);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    models::Batch& batch = parts.batches[static_cast<size_t>(rank)];
    batch = {batch.inputs.narrow(0, 0, rank + 1), batch.targets.narrow(0, 0, rank + 1)};
    parts.weights.push_back(2.0 * static_cast<double>(rank + 1) / static_cast<double>(world_size * (world_size + 1)));
  }
  return parts;
}

inline ProblemParts reference_parts(int64_t world_size) {
  ProblemParts parts;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    parts.models.push_back(std::make_shared<models::DdpCommHookTask>());
    parts.batches.push_back(models::DdpCommHookTask::reference_batch(rank));
  }
  return parts;
}

// The hooks of the library on `group`.
inline verification::HookFactory real_hooks(const ProcessGroupPtr& group) {
  return [=](const DdpOptions& ddp) { return hooks::create_comm_hook(ddp.hook(), ddp.hook_options(group)); };
}

// The hook `inner`, with a fault: `spoil` changes each bucket that it has averaged.
class SpoiledHook : public hooks::CommHook {
 public:
  SpoiledHook(std::unique_ptr<hooks::CommHook> inner, std::function<void(at::Tensor&)> spoil)
      : inner_(std::move(inner)), spoil_(std::move(spoil)) {}
  std::string_view name() const override { return inner_->name(); }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return inner_->runHook(bucket)->then(
        [this](c10::ivalue::Future& done) {
          at::Tensor mean = inner_->parseHookResult(done.value());
          spoil_(mean);
          return c10::IValue(mean);
        },
        c10::TensorType::get());
  }

 private:
  std::unique_ptr<hooks::CommHook> inner_;
  std::function<void(at::Tensor&)> spoil_;
};

}  // namespace narrowcast::testing

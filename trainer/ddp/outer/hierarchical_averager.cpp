#include <narrowcast/hierarchical_averager.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/table/hook_table.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/sharding/shared_parameters.h"

namespace narrowcast {
namespace {

void check_levels(const std::vector<AveragingLevel>& levels, int64_t world_size) {
  TORCH_CHECK_VALUE(!levels.empty(), "levels: must not be empty");
  int64_t last_period = 0;
  for (const auto& [period, group_size] : levels) {
    TORCH_CHECK_VALUE(period > last_period, "levels: periods must ascend from 1 or more, but ", period, " follows ",
                      last_period);
    TORCH_CHECK_VALUE(group_size >= 1 && group_size <= world_size, "levels: group_size must be in 1..", world_size,
                      ", but is ", group_size);
    last_period = period;
  }
  TORCH_CHECK_VALUE(levels.back().group_size == world_size, "levels: the last group_size must be the number of ranks (",
                    world_size, "), but is ", levels.back().group_size);
}

std::string levels_text(const std::vector<AveragingLevel>& levels) {
  std::string text;
  for (const auto& [period, group_size] : levels) {
    text += c10::str(text.empty() ? "" : ", ", group_size, " ranks every ", period, " steps");
  }
  return text;
}

}  // namespace

HierarchicalAverager::HierarchicalAverager(ProcessGroupPtr group, const std::vector<AveragingLevel>& levels,
                                           int64_t warmup_steps)
    : group_(checked_group(std::move(group))), warmup_steps_(warmup_steps) {
  check_levels(levels, group_->getSize());
  TORCH_CHECK_VALUE(warmup_steps >= 0, "warmup_steps: must be at least 0, but is ", warmup_steps);
  check_equal_on_all_ranks(group_, {{"levels", levels_text(levels)}, {"warmup_steps", c10::str(warmup_steps)}});
  with_network_errors(group_->getRank(), "making groups that average", [&] {
    for (const AveragingLevel& level : levels) {
      levels_.push_back(
          {level, hooks::create_comm_hook(hooks::kPostLocalSgdHook,
                                          {.process_group = group_, .local = {.group_size = level.group_size}})});
    }
  });
}

HierarchicalAverager::~HierarchicalAverager() = default;

const HierarchicalAverager::Level* HierarchicalAverager::due() const {
  for (auto level = levels_.rbegin(); step_ >= warmup_steps_ && level != levels_.rend(); ++level) {
    if (step_ % level->level.period == 0) {
      return &*level;
    }
  }
  return nullptr;
}

// Passes all parameters to the hook as one bucket with one parameter.
int64_t HierarchicalAverager::average(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    sharding::check_is_not_shared(parameters[i], "HierarchicalAverager", c10::str("parameter ", i));
  }
  const Level* const level = due();
  ++step_;
  if (level == nullptr) {
    return 0;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) {
    flat.push_back(parameter.detach().reshape({-1}).to(at::kFloat));
  }
  const at::Tensor all = at::cat(flat);
  c10d::GradBucket bucket(0, 1, all, {0}, {static_cast<size_t>(all.numel())}, {all.sizes()}, {all}, std::nullopt);
  const at::Tensor mean = with_network_errors(group_->getRank(), "averaging parameters", [&] {
    const auto future = level->exchange->runHook(bucket);
    future->waitAndThrow();
    return level->exchange->parseHookResult(future->value());
  });
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.detach().copy_(mean.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  return level->level.group_size;
}

int64_t HierarchicalAverager::payload_bytes_sent() const {
  int64_t bytes = 0;
  for (const Level& level : levels_) {
    bytes += level.exchange->payload_bytes_sent();
  }
  return bytes;
}

}  // namespace narrowcast

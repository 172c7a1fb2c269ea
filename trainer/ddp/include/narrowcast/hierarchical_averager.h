// Averages parameters in groups of ranks that grow with the number of steps between averages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// Every `period` steps consecutive ranks, so many, average.
struct AveragingLevel {
  int64_t period = 1;      // >= 1
  int64_t group_size = 1;  // 1 to the number of ranks; the last group may have fewer
};

// PyTorch's HierarchicalModelAverager: after each step of an optimizer, at a step (counted from 0) that is not in the
// warm-up, the largest period that divides the step says which groups average; where none does, none do. OuterOptimizer
// has one period for all ranks, and more that can be done with what they exchange.
class NARROWCAST_EXPORT HierarchicalAverager {
 public:
  // A collective: makes the groups. Throws c10::ValueError for no levels, periods that do not ascend from 1 or more, a
  // group size out of range, a last one that is not the number of ranks, and a warm-up below 0; on all
  // ranks alike where these differ between them. c10::DistBackendError if a peer fails.
  HierarchicalAverager(ProcessGroupPtr group, const std::vector<AveragingLevel>& levels, int64_t warmup_steps = 0);
  ~HierarchicalAverager();
  HierarchicalAverager(const HierarchicalAverager&) = delete;
  HierarchicalAverager& operator=(const HierarchicalAverager&) = delete;

  // A collective: replaces the parameters, of floating types and on one device, by their mean over the group if that is
  // due, in float32, and counts the step. The same parameters in the same order on all ranks. Returns the size of
  // groups that averaged, or 0. c10::DistBackendError if a peer fails.
  int64_t average(const std::vector<at::Tensor>& parameters);

  // Steps counted so far: what a training that resumes must set.
  int64_t step() const { return step_; }
  // Resumes there; `step` >= 0.
  void set_step(int64_t step) { step_ = step; }

  // By this rank, see CommHook::payload_bytes_sent.
  int64_t payload_bytes_sent() const;

 private:
  struct Level {
    AveragingLevel level;
    std::unique_ptr<hooks::CommHook> exchange;
  };
  const Level* due() const;

  const ProcessGroupPtr group_;
  const int64_t warmup_steps_;
  std::vector<Level> levels_;
  int64_t step_ = 0;
};

}  // namespace narrowcast

// Averages parameters in groups of ranks; larger groups average less often.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// Every `period` steps each group of `group_size` consecutive ranks averages.
struct AveragingLevel {
  int64_t period = 1;      // >= 1
  int64_t group_size = 1;  // 1 to the number of ranks; the last group may have fewer
};

// PyTorch's HierarchicalModelAverager: averages parameters after steps of an optimizer. Steps are counted from 0. After
// the warm-up, the level with the largest period that divides the step averages; if no period does, no group averages.
// OuterOptimizer has one period for all ranks and more options for the exchanged parameters.
class NARROWCAST_EXPORT HierarchicalAverager {
 public:
  // A collective that creates the groups. Throws c10::DistBackendError if a peer fails, and c10::ValueError
  //   - if there are no levels;
  //   - if periods do not ascend from 1 or more;
  //   - if a group size is out of range, or the last one is not the number of ranks;
  //   - if the warm-up is below 0;
  //   - on all ranks, if levels or warm-up differ between ranks.
  HierarchicalAverager(ProcessGroupPtr group, const std::vector<AveragingLevel>& levels, int64_t warmup_steps = 0);
  ~HierarchicalAverager();
  HierarchicalAverager(const HierarchicalAverager&) = delete;
  HierarchicalAverager& operator=(const HierarchicalAverager&) = delete;

  // A collective that counts the step and, if a level is due, replaces the parameters by their mean over its group, in
  // float32. All ranks pass the same parameters in the same order, of floating types and on one device. Returns
  // group_size of the level that averaged, or 0. Throws c10::DistBackendError if a peer fails, and c10::ValueError for
  // parameters that ranks share (ShardOptions::share_parameters).
  int64_t average(const std::vector<at::Tensor>& parameters);

  // Steps counted so far. A training that resumes must set it.
  int64_t step() const { return step_; }
  // Continues at that step; `step` >= 0.
  void set_step(int64_t step) { step_ = step; }

  // Bytes that this rank has sent, see CommHook::payload_bytes_sent.
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

// The last point at which a training was between steps, for a recovery in place (recovery.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trainer/ddp/shards/pieces.h"
#include "trainer/train/training/optimizer_steps.h"
#include "trainer/train/training/recovery.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {

// Whether the reports, evaluations and checkpoints due after the last step are done.
enum class Reports { kDue, kDone };

// Where a training ends or fails: in OptimizerSteps::take_next, or otherwise.
enum class Phase { kInStep, kBetweenSteps };

// Copies little after each step, and knows this rank's state after a step that failed: no exchange of gradients
// changes parameters and optimizer, and OptimizerSteps saves the buffers before each step. The copies are counters and
// the hook's state, which is as large as the gradients if the hook keeps residuals.
//
// With shards within nodes, ranks step their shards in place. A rank does so only once all ranks of its node have the
// step's averages. From then on they need no rank of another node to end the step. So whole nodes have whole states. If
// a rank of the node itself is lost meanwhile, the others' state is torn: they get another node's.
//
// With second copies of shards over all ranks, ranks agree before they step (OptimizerSteps::agree_on). If a rank fails
// then, it can continue from before the step and from after it. Some of the parameters that a rank has may be torn, but
// the shards that it holds are not.
class LastPoint {
 public:
  // `steps` must outlive this object. `left` gets the state; null: nothing is remembered.
  LastPoint(OptimizerSteps& steps, std::optional<SurvivingState>* left) : steps_(steps), left_(left) {}

  // Call it after each step, before its reports, and after resuming. After a step, reports are always done again: rank
  // 0 may have been lost before it wrote them.
  void remember(const Counters& counters, Reports reports);
  // The same after a recovery from the ranks' memory, once this rank has its part of the optimizer's state. Until the
  // next call, it also offers what it had before, `restored.pieces` or the whole state: a rank may be lost before all
  // have their parts, or before the next step. So the ranks that are left have all that they had together, also of
  // shards of which there is one copy.
  void remember_recovered(const Counters& counters, Reports reports, checkpoint::Restored& restored);
  // The same if all ranks stop here, reports done: then they also have all shards of which there is one copy. Only if
  // the point is known, they may stop.
  void remember_for_newcomers(const Counters& counters);

  // Whether the state at the last point is known.
  bool is_known() const { return point_.has_value(); }

  // Writes the state at the last point, when the training has ended or an exchange has failed. If the step was torn,
  // writes why there is no state. Writes nothing if it is not recoverable: before the buckets are settled, with an
  // outer optimizer, or if replicas differ. With one copy of shards over all ranks, `remember` has written why there is
  // no state.
  void leave(Phase phase);

 private:
  struct Point {
    ReducerState reducer;  // its tensors are copies
    Counters counters = {};
    at::Tensor window_loss = {};
    checkpoint::TensorMap scaler = {};
    bool is_reported = true;
  };

  bool is_recoverable() const;
  bool has_all_shards() const;
  void remember_point(const Counters& counters, Reports reports);
  SurvivingState state_at(const Point& point);
  SurvivingState state_before_step();
  bool lacks_parameters() const;
  SurvivingState unusable(const char* why) const;
  void offer_before_reports();

  OptimizerSteps& steps_;
  std::optional<SurvivingState>* const left_;
  std::optional<Point> point_;  // empty if it is not recoverable
  // Before the reports of the step after which all ranks stop. Of its tensors, it has the window's loss alone.
  std::optional<Point> due_ = {};
  bool all_ranks_stop_ = false;  // at point_
  // The state of this rank at point_ before remember_recovered; empty after a step.
  struct Former {
    std::vector<pieces::Piece> pieces = {};  // Their tensors may be the optimizer's own.
    bool has_values = false;                 // Ranks have offered values of parameters (held_state).
    std::optional<SurvivingState> whole = {};
  };
  std::optional<Former> former_ = {};
};

}  // namespace narrowcast::training

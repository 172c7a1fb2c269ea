#include "trainer/train/training/last_point.h"

#include <utility>

namespace narrowcast::training {

bool LastPoint::is_recoverable() const {
  return left_ != nullptr && steps_.outer() == nullptr && steps_.shards() != OptimizerShards::kAll &&
         steps_.model().keeps_replicas_equal() && steps_.model().buckets_are_settled();
}

void LastPoint::remember(const Counters& counters, Reports reports) {
  if (!is_recoverable()) {
    point_.reset();
    const bool is_whole = steps_.outer() == nullptr && steps_.model().keeps_replicas_equal();
    if (left_ != nullptr && (steps_.shards() == OptimizerShards::kAll || !is_whole)) {
      *left_ = SurvivingState{
          .content = {.step = counters.step, .training = {}, .replica = {}, .rank = {}},
          .why_unusable = is_whole ? "the optimizer is sharded over all ranks" : "the parameters differ between ranks"};
    } else if (left_ != nullptr && steps_.sharded() != nullptr) {
      left_->reset();  // The optimizer may step the tensors of an earlier state.
    }
    return;
  }
  left_->reset();  // It may be written anew from now on.
  point_ = Point{.reducer = steps_.model().state(),
                 .counters = counters,
                 .window_loss = steps_.copy_of_window_loss(),
                 .is_reported = reports == Reports::kDone};
  for (hooks::HookState& state : point_->reducer.hook.states) {
    for (auto& [name, tensor] : state) tensor = tensor.clone();
  }
}

// Parameters are copied: the next group's DistributedDataParallel broadcasts those of its rank 0 into them. A GPU may
// have no memory for two of each.
void LastPoint::leave(Phase phase) {
  if (!point_.has_value()) {
    return;
  }
  if (phase == Phase::kInStep && steps_.is_torn()) {
    *left_ = SurvivingState{.why_unusable = "the ranks that are left were in a step of their shards"};
    return;
  }
  SurvivingState state = {
      .content = {}, .is_reported = point_->is_reported, .world_size = steps_.model().process_group()->getSize()};
  if (phase == Phase::kInStep) {
    steps_.restore_buffers();
  }
  Counters counters = point_->counters;
  counters.window_loss = point_->window_loss.item<double>();
  state.content = save_without_shards(steps_.parts(), counters, point_->reducer);
  state.optimizer = held_pieces(steps_.parts());
  for (auto& [name, tensor] : state.content.replica)
    tensor = tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  *left_ = std::move(state);
}

}  // namespace narrowcast::training

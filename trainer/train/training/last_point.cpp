#include "trainer/train/training/last_point.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trainer/ddp/sharding/sharded_parts.h"
#include "trainer/train/optimization/saved_buffers.h"

namespace narrowcast::training {

// Whether those ranks that are left may have all shards together.
bool LastPoint::has_all_shards() const {
  return all_ranks_stop_ || former_.has_value() || steps_.shards() != OptimizerShards::kAll ||
         steps_.sharded()->parts().has_copies();
}

bool LastPoint::is_recoverable() const {
  return left_ != nullptr && steps_.outer() == nullptr && has_all_shards() && steps_.model().keeps_replicas_equal() &&
         steps_.model().buckets_are_settled();
}

void LastPoint::remember(const Counters& counters, Reports reports) {
  former_.reset();
  remember_point(counters, reports);
}

// All values of parameters are here by now.
void LastPoint::remember_recovered(const Counters& counters, Reports reports, checkpoint::Restored& restored) {
  former_.reset();
  if (restored.pieces) {
    former_ = Former{.pieces = *std::move(restored.pieces), .has_values = restored.pieces_have_values};
    std::erase_if(former_->pieces, [](const pieces::Piece& piece) { return is_of_values(piece.range); });
  } else if (left_ != nullptr && left_->has_value() && (*left_)->why_unusable.empty() && !(*left_)->optimizer &&
             (*left_)->content.step == counters.step && steps_.sharded() != nullptr) {
    former_ = Former{.whole = *std::move(*left_)};
  }
  remember_point(counters, reports);
}

void LastPoint::remember_point(const Counters& counters, Reports reports) {
  due_.reset();
  if (!is_recoverable()) {
    point_.reset();
    const bool is_whole = steps_.outer() == nullptr && steps_.model().keeps_replicas_equal();
    if (left_ != nullptr && (!has_all_shards() || !is_whole)) {
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
                 .scaler = scaler_state(steps_.scaler()),
                 .is_reported = reports == Reports::kDone};
  for (auto& [name, tensor] : point_->scaler) tensor = tensor.clone();
  for (hooks::HookState& state : point_->reducer.hook.states) {
    for (auto& [name, tensor] : state) tensor = tensor.clone();
  }
}

void LastPoint::remember_for_newcomers(const Counters& counters) {
  all_ranks_stop_ = true;
  std::optional<Point> due = std::exchange(point_, std::nullopt);
  remember(counters, Reports::kDone);
  all_ranks_stop_ = point_.has_value();
  if (due && !due->is_reported && due->counters.step == counters.step) {
    due_ = Point{.reducer = {}, .counters = due->counters, .window_loss = due->window_loss, .is_reported = false};
  }
}

// Parameters are copied: the next group's DistributedDataParallel broadcasts those of its rank 0 into them. A GPU may
// have no memory for two of each.
SurvivingState LastPoint::state_at(const Point& point) {
  SurvivingState state = {
      .content = {}, .is_reported = point.is_reported, .world_size = steps_.model().process_group()->getSize()};
  Counters counters = point.counters;
  counters.window_loss = point.window_loss.item<double>();
  state.content = save_without_shards(steps_.parts(), counters, point.reducer);
  for (const auto& [name, tensor] : point.scaler) state.content.replica.insert_or_assign(name, tensor);
  for (auto& [name, tensor] : state.content.replica)
    tensor = tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  state.optimizer = held_state(steps_.parts(), state.content);
  return state;
}

// The same at the last point. The step has changed nothing yet.
SurvivingState LastPoint::state_before_step() {
  SurvivingState state = state_at(*point_);
  if (former_ && state.optimizer) {
    if (former_->has_values && !steps_.sharded()->parts().has_copies()) {
      add_values(steps_.parts(), state.content, *state.optimizer);
    }
    std::ranges::copy(former_->pieces, std::back_inserter(state.optimizer->pieces));
  }
  if (former_ && former_->whole) {
    state.earlier.push_back(*former_->whole);
  }
  return state;
}

SurvivingState LastPoint::unusable(const char* why) const {
  return {.content = {.step = point_->counters.step, .training = {}, .replica = {}, .rank = {}}, .why_unusable = why};
}

void LastPoint::leave(Phase phase) {
  if (!point_.has_value()) {
    return;
  }
  if (phase == Phase::kInStep && steps_.is_torn()) {
    const bool has_former = former_ && former_->whole;  // Its tensors are copies.
    *left_ = has_former ? *former_->whole : unusable("the ranks that are left were in a step of their shards");
    return;
  }
  steps_.finish_step_alone();
  if (lacks_parameters()) {
    *left_ = unusable("the ranks that are left were exchanging parameters");
    return;
  }
  if (phase != Phase::kInStep || !steps_.is_in_doubt()) {
    if (phase == Phase::kInStep) {
      steps_.restore_buffers();
    }
    *left_ = state_before_step();
    offer_before_reports();
    return;
  }
  SavedBuffers after(*steps_.model().module());
  after.save();
  steps_.restore_buffers();
  SurvivingState before = state_before_step();
  for (pieces::Piece& piece : before.optimizer.value().pieces) {
    if (is_of_values(piece.range)) continue;  // It is a copy.
    for (auto& [name, tensor] : piece.tensors) tensor = tensor.clone();
  }
  after.restore();
  Point next = {.reducer = steps_.model().state(), .counters = steps_.take_step_in_doubt(), .is_reported = false};
  next.counters.window_seconds = point_->counters.window_seconds;
  next.window_loss = steps_.copy_of_window_loss();
  *left_ = state_at(next);
  (*left_)->earlier = std::exchange(before.earlier, {});
  (*left_)->earlier.push_back(std::move(before));
}

// Whether parameters are unknown that no rank offers by their elements (held_state).
bool LastPoint::lacks_parameters() const {
  ShardedOptimizer* const sharded = steps_.sharded();
  return sharded != nullptr && !sharded->parts().has_copies() && !sharded->parts().has_all_parameters();
}

// With shards over all ranks, a rank needs the others at the same point. They may have failed in the reports, which
// change counters.
void LastPoint::offer_before_reports() {
  if (due_ && steps_.shards() == OptimizerShards::kAll) {
    SurvivingState due = **left_;
    due.is_reported = false;
    Counters counters = due_->counters;
    counters.window_loss = due_->window_loss.item<double>();
    std::erase_if(due.content.replica, [](const auto& entry) { return is_counter(entry.first); });
    save_counters(counters, due.content);
    (*left_)->earlier.push_back(std::move(due));
  }
}

}  // namespace narrowcast::training

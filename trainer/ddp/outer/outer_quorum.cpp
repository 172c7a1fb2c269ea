// Rounds of an outer optimizer with a quorum: a late group takes the rounds of the others later, and loses nothing.
#include <narrowcast/outer_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/ddp/optimization/finite.h"
#include "trainer/ddp/quorum/quorum_rounds.h"

namespace narrowcast {
namespace {

using hooks::HookState;
using hooks::int_of;
using hooks::int_tensor;

constexpr const char* kResidual = "residual.fragment.0";
constexpr const char* kOwnSteps = "own_steps";
constexpr const char* kUnsentSteps = "unsent_steps";
constexpr const char* kIsLate = "is_late";
constexpr const char* kMessages = "messages";
constexpr const char* kGroups = "groups";

constexpr int64_t kMostRoundsPerStep = 16;  // that a late group takes

int64_t count_of(const HookState& state, const char* name) {
  const int64_t count = int_of(state, name);
  NARROWCAST_CHECK_INPUT(count >= 0 && count <= kMostRoundWeight, "the outer optimizer's '", name, "' must be in 0..",
                         kMostRoundWeight, ", but is ", count);
  return count;
}

}  // namespace

// Steps from the last round to the next one of a group that is not late.
int64_t OuterOptimizer::steps_in_round() const {
  return common_steps_ == options_.warmup_steps() ? options_.effective_first_exchange() : options_.sync_every();
}

// A group that finds ended rounds does not wait for another one in the same step: the caller may have something to do
// after these rounds for which all ranks wait. But it sends what it has, so that it is in the next round.
void OuterOptimizer::end_step_of_quorum() {
  ++unsent_steps_;
  const bool is_due = steps_ - common_steps_ >= steps_in_round();
  if (!is_due && !(is_late_ && quorum_->would_complete_quorum())) {
    return;
  }
  if (catch_up()) {
    is_late_ = true;
    if (!quorum_->has_sent() && unsent_steps_ > 0) send_difference();
    return;
  }
  if (!quorum_->has_sent()) {
    send_difference();
  }
  const EndedRound round = quorum_->wait_for_next();
  is_late_ = !round.has_own || (is_late_ && !is_due);
  take_round(round, steps_in_round());
}

// Takes rounds that have ended without waiting for this rank's group. The others may end rounds faster than this rank
// receives them. It therefore takes a few at a time, so that it also takes steps, sends, and learns of signals.
bool OuterOptimizer::catch_up() {
  int64_t taken = 0;
  for (; taken < kMostRoundsPerStep; ++taken) {
    const auto round = quorum_->next_ended();
    if (!round) break;
    take_round(*round, steps_in_round());
  }
  return taken > 0;
}

void OuterOptimizer::catch_up_with_all() {
  if (!quorum_ || is_warming_up()) {
    return;
  }
  for (int64_t missing = quorum_->missing_rounds(); missing > 0; --missing) {
    take_round(quorum_->next_missing(), steps_in_round());
  }
}

void OuterOptimizer::average_late_messages() {
  if (!quorum_ || is_warming_up()) {
    return;
  }
  if (const auto round = quorum_->rest()) {
    take_round(*round, /*counted_steps=*/0);
  }
}

void OuterOptimizer::average_rest() {
  if (!quorum_) {
    return;
  }
  catch_up_with_all();
  average_late_messages();
  if (unsent_steps_ > 0) {
    send_difference();
  }
  average_late_messages();
  steps_ = common_steps_;  // Ranks have been at different steps of their rounds.
  quorum_->wait_for_sends();
}

void OuterOptimizer::send_difference() {
  const at::NoGradGuard no_grad;
  gather(fragments_[0], sent_);
  sent_.neg_().add_(reference_);
  const Notes notes = notes_of_group();
  quorum_->send(sent_, std::exchange(unsent_steps_, 0), notes);
}

OuterOptimizer::Notes OuterOptimizer::notes_of_group() const {
  const Notes own = notes_ ? notes_() : Notes{};
  return combine_notes_ ? combine_notes_(quorum_->notes_of_group(own)) : own;
}

// All ranks have the same mean, so they agree on whether it is lost. `sent_` is the difference in the group's message
// that is averaged or waits for it.
void OuterOptimizer::take_round(const EndedRound& round, int64_t counted_steps) {
  const at::NoGradGuard no_grad;
  ++exchanges_;
  const bool is_usable = all_finite(round.mean);
  const bool takes_reference = round.has_own && unsent_steps_ == 0;
  at::Tensor moved = takes_reference ? at::Tensor() : reference_.clone();
  if (is_usable) {
    take_outer_step(fragments_[0], Exchange{.mean = round.mean});
  } else {
    ++lost_exchanges_;
  }
  if (takes_reference) {
    scatter(fragments_[0], /*mix=*/0);
    unsent_steps_ = 0;
  } else {
    moved.neg_().add_(reference_);
    if (round.has_own) moved.add_(sent_);
    move_own(moved);
  }
  // A round of late messages counts no steps, and may be within the rank's own round.
  common_steps_ += counted_steps;
  if (counted_steps > 0) steps_ = common_steps_;
  // Groups that sent their messages in this round have waited for its end since then.
  replicas_are_equal_ = std::ssize(round.headers) == quorum_->groups() &&
                        std::ranges::all_of(round.headers, [&](const RoundHeader& header) {
                          return header.rounds == quorum_->rounds() - 1;
                        });
  if (notes_) {
    Round ended{.steps = common_steps_};
    for (const RoundHeader& header : round.headers) {
      ended.groups.push_back(header.group);
      ended.notes.push_back(header.notes);
    }
    ended_rounds_.push_back(std::move(ended));
  }
}

// Adds `by` to the own parameters, float32 [elements]. If they are not finite, what the rank has learnt is of no use.
void OuterOptimizer::move_own(const at::Tensor& by) {
  at::Tensor own = at::empty_like(by);
  gather(fragments_[0], own);
  own.add_(by);
  if (!all_finite(own)) {
    own.copy_(reference_);
    if (quorum_->has_sent()) own.sub_(sent_);
    unsent_steps_ = 0;
  }
  int64_t begin = 0;
  for (const Slice& slice : fragments_[0].slices) {
    slice.memory().copy_(own.narrow(0, begin, slice.numel));
    begin += slice.numel;
  }
}

HookState OuterOptimizer::state_of_quorum() const {
  HookState state = {{kOwnSteps, int_tensor(steps_ - common_steps_)},
                     {kUnsentSteps, int_tensor(unsent_steps_)},
                     {kIsLate, int_tensor(is_late_ ? 1 : 0)},
                     {kMessages, int_tensor(quorum_->messages())},
                     {kGroups, int_tensor(quorum_->groups())}};
  if (quorum_->residual().defined()) {
    state.emplace(kResidual, quorum_->residual());
  }
  return state;
}

// In another world, residuals are added up so that they have the same effect on later means.
void OuterOptimizer::load_quorum(const OuterState& saved) {
  const bool is_same_world = saved.rank.world_size == group_->getSize() && !saved.groups_differ;
  const at::Tensor& residual = quorum_->residual();
  if (residual.defined()) {
    residual.zero_();
    for (const HookState& state : saved.rank.states) {
      const auto found = state.find(kResidual);
      if (found == state.end()) continue;
      NARROWCAST_CHECK_INPUT(found->second.scalar_type() == at::kFloat && found->second.sizes() == residual.sizes(),
                             "the outer optimizer's '", kResidual, "' is ", found->second.scalar_type(), " ",
                             found->second.sizes(), ", but must be float32 ", residual.sizes());
      const auto groups = static_cast<double>(std::max<int64_t>(1, count_of(state, kGroups)));
      const double factor = static_cast<double>(quorum_->groups()) / groups;
      residual.add_(factor == 1 ? found->second.to(residual.device())
                                : found->second.to(residual.device()).mul(factor));
    }
  }
  unsent_steps_ = 0;
  is_late_ = false;
  if (is_same_world) {
    const HookState& own = saved.rank.own();
    unsent_steps_ = count_of(own, kUnsentSteps);
    is_late_ = count_of(own, kIsLate) != 0;
    steps_ += count_of(own, kOwnSteps);
    quorum_->continue_after(count_of(own, kMessages));
  }
}

}  // namespace narrowcast

// Saved state of an outer optimizer, and OuterParameters, which puts the outer parameters into the model.
#include <narrowcast/outer_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/ddp/outer/round_clock.h"

namespace narrowcast {
namespace {

using hooks::HookState;
using hooks::int_of;
using hooks::int_tensor;

// Names of the tensors in the state.
constexpr const char* kSteps = "steps";
constexpr const char* kExchanges = "exchanges";
constexpr const char* kLostExchanges = "lost_exchanges";
constexpr const char* kReplicasAreEqual = "replicas_are_equal";
constexpr const char* kReference = "reference";
constexpr const char* kMomentum = "momentum";
constexpr const char* kMean = "mean";
constexpr const char* kFragment = "fragment";
constexpr const char* kJoinedAt = "joined_at";
constexpr const char* kRoundSteps = "round_steps";
constexpr const char* kRoundSeconds = "round_seconds";

at::Tensor floats_of(const HookState& state, const char* name, int64_t numel) {
  const auto found = state.find(name);
  NARROWCAST_CHECK_INPUT(found != state.end(), "the outer optimizer's '", name, "' is missing");
  NARROWCAST_CHECK_INPUT(
      found->second.scalar_type() == at::kFloat && found->second.dim() == 1 && found->second.numel() == numel,
      "the outer optimizer's '", name, "' is ", found->second.scalar_type(), " ", found->second.sizes(),
      ", but must be float32 [", numel, "]");
  return found->second;
}

}  // namespace

// The exchange that is under way is joined only temporarily: all that the join changes is restored.
OuterOptimizer::OuterParameters::OuterParameters(OuterOptimizer& outer) : outer_(outer) {
  if (outer_.is_warming_up()) {
    return;
  }
  const at::NoGradGuard no_grad;
  outer_.catch_up_with_all();
  if (outer_.clock_) {
    elapsed_ = outer_.clock_->elapsed();
  }
  for (const at::Tensor& parameter : outer_.parameters_) {
    own_.push_back(parameter.detach().clone());
  }
  if (!outer_.under_way_) {
    outer_.take_reference();
    return;
  }
  const at::Tensor mean = outer_.wait_for_mean().clone();
  const Exchange under_way = *outer_.under_way_;
  const at::Tensor reference = outer_.reference_.clone();
  const at::Tensor momentum = outer_.momentum_.defined() ? outer_.momentum_.clone() : at::Tensor();
  const int64_t lost_exchanges = outer_.lost_exchanges_;
  const bool replicas_are_equal = outer_.replicas_are_equal_;
  outer_.finish();
  outer_.reference_.copy_(reference);
  if (momentum.defined()) {
    outer_.momentum_.copy_(momentum);
  }
  outer_.lost_exchanges_ = lost_exchanges;
  outer_.replicas_are_equal_ = replicas_are_equal;
  under_way.mean.copy_(mean);
  outer_.under_way_ = under_way;
}

OuterOptimizer::OuterParameters::~OuterParameters() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) {
    outer_.parameters_[i].detach().copy_(own_[i]);
  }
  if (outer_.clock_ && !outer_.is_warming_up()) {
    outer_.clock_->restart(elapsed_);
  }
}

OuterState OuterOptimizer::state() {
  OuterState state;
  catch_up_with_all();
  average_late_messages();
  if (under_way_) {
    state.replica = {{kMean, wait_for_mean()},
                     {kFragment, int_tensor(under_way_->fragment)},
                     {kJoinedAt, int_tensor(under_way_->joined_at)}};
  }
  state.replica.emplace(kSteps, int_tensor(common_steps_));
  state.replica.emplace(kExchanges, int_tensor(exchanges_));
  state.replica.emplace(kLostExchanges, int_tensor(lost_exchanges_));
  state.replica.emplace(kReplicasAreEqual, int_tensor(replicas_are_equal_ ? 1 : 0));
  if (!is_warming_up()) {
    state.replica.emplace(kReference, reference_);
    if (momentum_.defined()) {
      state.replica.emplace(kMomentum, momentum_);
    }
  }
  HookState own = quorum_ ? state_of_quorum() : exchange_->state(names_);
  if (clock_) {
    own.emplace(kRoundSteps, int_tensor(steps_ - common_steps_));
    own.emplace(kRoundSeconds, at::full({}, clock_->elapsed(), at::kDouble));
  }
  state.rank = {.world_size = group_->getSize(), .states = {std::move(own)}, .first = {}};
  return state;
}

void OuterOptimizer::load_state(const OuterState& saved) {
  const at::NoGradGuard no_grad;
  const HookState& replica = saved.replica;
  steps_ = int_of(replica, kSteps);
  common_steps_ = steps_;
  exchanges_ = int_of(replica, kExchanges);
  lost_exchanges_ = int_of(replica, kLostExchanges);
  replicas_are_equal_ = int_of(replica, kReplicasAreEqual) != 0;
  under_way_.reset();
  quorum_ ? load_quorum(saved) : exchange_->load_state(saved.rank, names_);
  if (is_warming_up()) {
    return;
  }
  reference_.copy_(floats_of(replica, kReference, elements_));
  if (momentum_.defined()) {
    momentum_.copy_(floats_of(replica, kMomentum, elements_));
  }
  load_under_way(replica);
  if (saved.rank.world_size != group_->getSize() || saved.groups_differ) {
    take_reference();
    replicas_are_equal_ = true;
    restart_clock();
  } else if (clock_) {
    load_round(saved.rank.own());
  }
}

void OuterOptimizer::load_round(const HookState& own) {
  const int64_t steps = int_of(own, kRoundSteps);
  NARROWCAST_CHECK_INPUT(steps >= 0, "the outer optimizer's '", kRoundSteps, "' must be at least 0, but is ", steps);
  const auto found = own.find(kRoundSeconds);
  NARROWCAST_CHECK_INPUT(found != own.end() && found->second.scalar_type() == at::kDouble && found->second.numel() == 1,
                         "the outer optimizer's '", kRoundSeconds, "' must be one float64");
  const double seconds = found->second.item<double>();
  NARROWCAST_CHECK_INPUT(std::isfinite(seconds) && seconds >= 0, "the outer optimizer's '", kRoundSeconds,
                         "' must be at least 0, but is ", seconds);
  steps_ += steps;
  clock_->restart(seconds);
}

void OuterOptimizer::load_under_way(const HookState& replica) {
  if (!replica.contains(kFragment)) {
    return;
  }
  const int64_t index = int_of(replica, kFragment);
  const int64_t joined_at = int_of(replica, kJoinedAt);
  const int64_t local_step = steps_ - options_.warmup_steps();
  NARROWCAST_CHECK_INPUT(index >= 0 && index < options_.fragments() && joined_at > local_step &&
                             joined_at <= local_step + options_.overlap_steps(),
                         "the outer optimizer's exchange of fragment ", index, " is to be joined after step ",
                         joined_at, " of the rounds, but it is step ", local_step, ", and overlap_steps is ",
                         options_.overlap_steps());
  const at::Tensor mean = sent_.narrow(0, 0, fragments_[static_cast<size_t>(index)].numel);
  mean.copy_(floats_of(replica, kMean, mean.numel()));
  under_way_ = Exchange{.fragment = index,
                        .joined_at = joined_at,
                        .future = {},
                        .mean = mean,
                        .is_of_parameters = options_.sends_parameters()};
}

}  // namespace narrowcast

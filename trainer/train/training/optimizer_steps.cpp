#include "trainer/train/training/optimizer_steps.h"

#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <cmath>
#include <exception>
#include <iterator>
#include <set>
#include <vector>

#include <narrowcast/muon.h>
#include "ops/comm/groups/broken_groups.h"
#include "ops/comm/link/link.h"
#include "trainer/ddp/optimization/gradients.h"
#include "trainer/ddp/sharding/sharded_parts.h"
#include "trainer/train/optimization/optimizer.h"

namespace narrowcast::training {
namespace {

// Whether two ranks take the same step of the same element. Not if one rank steps it for all, nor if each rank takes
// its own steps from the beginning on. `groups`: ReplicatedModel::hook_groups
bool are_steps_repeated(const TrainingSetup& setup, const TrainingOptions& options,
                        const std::vector<int64_t>& groups) {
  if (setup.shards == OptimizerShards::kAll) {
    return options.shard_copies > 1;
  }
  const bool are_alone = std::set<int64_t>(groups.begin(), groups.end()).size() == groups.size();
  return !setup.outer || setup.outer->warmup_steps() > 0 || !are_alone;
}

}  // namespace

PassClock::PassClock(const std::vector<at::Tensor>& parameters)
    : last_gradient_(Clock::now()),
      began_(Clock::now()),
      hooks_(parameters, [this](size_t /*parameter*/) { last_gradient_ = Clock::now(); }) {}

void PassClock::end_local_pass(double waited) { computed_ += since_begin(last_gradient_.load()) - waited; }

void PassClock::end_averaged_pass(double waited) {
  const Clock::time_point last = last_gradient_.load();
  computed_ += since_begin(last) - waited;
  exchanged_ += std::chrono::duration<double>(Clock::now() - last).count() + waited;
}

OptimizerSteps::OptimizerSteps(const TrainingSetup& setup, const TrainingOptions& options)
    : options_(options),
      observer_(setup.observer),
      rank_(setup.group->getRank()),
      plan_(batch_plan(options, setup.group->getSize())),
      order_(setup.dataset.training_size(), options.seed),
      learning_rate_(options.learning_rate, options.steps),
      parameters_(trained_parameters(*setup.model)),
      window_loss_(zero()),
      feed_(setup.dataset, parameters_.at(0).device()),
      own_gradients_(options.skip_nonfinite_steps && setup.group->getSize() > 1
                         ? std::make_unique<OwnGradients>(parameters_)
                         : nullptr),
      clock_(parameters_.at(0).is_cpu() ? std::make_unique<PassClock>(parameters_) : nullptr),
      ddp_(setup.model, setup.group, setup.ddp),
      optimizer_(make_optimizer(*setup.model, options.optimizer)),
      shards_(setup.shards),
      recovers_(setup.checkpoints.surviving != nullptr) {
  if (auto* const muon = dynamic_cast<optim::Muon*>(optimizer_.get())) {
    if (are_steps_repeated(setup, options, ddp_.hook_groups())) {
      muon->make_replicas_equal(setup.group);
    } else {
      muon->use_common_ns_dtype(setup.group);
    }
  }
  const bool whole_parameters = options.optimizer.kind == OptimizerKind::kMuon;
  if (setup.shards == OptimizerShards::kNode) {
    sharded_.emplace(*optimizer_, setup.group,
                     ShardOptions()
                         .node_size(setup.ddp.wire().node_size)
                         .whole_parameters(whole_parameters)
                         .share_parameters(options.share_parameters)
                         .copies(options.shard_copies));
  } else if (setup.shards == OptimizerShards::kAll) {
    sharded_.emplace(*optimizer_, ddp_.reducer(),
                     ShardOptions()
                         .whole_parameters(whole_parameters)
                         .parameter_format(options.parameter_format)
                         .copies(options.shard_copies));
  }
  if (setup.outer.has_value()) {
    outer_.emplace(*optimizer_, setup.group, *setup.outer, ddp_.hook_groups());
    holds_round_ = setup.outer->sync_seconds().has_value();
    if (holds_round_) outer_->hold_round();
  }
  // Unused parameters are found in the autograd graph, and a static graph is learnt from it.
  if (!setup.ddp.find_unused_parameters() && !setup.ddp.static_graph()) setup.model->compute_loss_in_backward();
  if (options.shares.kind == data::Shares::Kind::kAuto && clock_ && setup.group->getSize() > 1) {
    share_chooser_.emplace(setup.group, options.batch_size, options.accumulation_steps);
  }
  if (options.precision == Precision::kFp16) {
    scaler_.emplace(parameters_.at(0).device());
  }
  if (options.skip_nonfinite_steps || recovers_) {
    before_.emplace(*setup.model);
  }
}

TrainingParts OptimizerSteps::parts() {
  finish_step();
  return {.model = ddp_,
          .optimizer = *optimizer_,
          .scaler = scaler_ ? &*scaler_ : nullptr,
          .outer = outer(),
          .sharded = sharded(),
          .parameter_bytes = &parameter_bytes_before_,
          .share_chooser = share_chooser_ ? &*share_chooser_ : nullptr,
          .order = order_,
          .batch_size = options_.batch_size};
}

int64_t OptimizerSteps::groups() const {
  const std::vector<int64_t> groups = ddp_.hook_groups();
  return groups.empty() ? ddp_.process_group()->getSize() : std::ssize(std::set<int64_t>(groups.begin(), groups.end()));
}

int64_t OptimizerSteps::payload_bytes_sent() const {
  return ddp_.payload_bytes_sent() + (outer_ ? outer_->payload_bytes_sent() : 0) +
         (sharded_ ? parameter_bytes_before_ + sharded_->payload_bytes_sent() : 0);
}

std::optional<double> OptimizerSteps::parameter_difference() {
  return sharded_ && sharded_->has_masters() ? std::optional(sharded_->largest_difference()) : std::nullopt;
}

int64_t OptimizerSteps::measuring_bytes_sent() const { return collectives::measuring_bytes_sent(ddp_.process_group()); }

std::optional<double> OptimizerSteps::take_exchange_seconds() {
  return clock_ ? std::optional(clock_->take_exchange_seconds()) : std::nullopt;
}

void OptimizerSteps::begin_at(int64_t step) {
  if (share_chooser_) use_shares(share_chooser_->shares());  // They may be a checkpoint's.
  prepare(step, /*micro_step=*/0);
}

void OptimizerSteps::take_next(Counters& counters) {
  begin_step();
  const int64_t step = ++counters.step;
  seed_draws(parameters_.at(0).device(), {.seed = options_.seed, .rank = rank_, .step = step});
  at::Tensor loss = zero();
  ddp_.zero_grad();
  if (own_gradients_) {
    own_gradients_->begin_step();
  }
  if (before_) {
    before_->save();
  }
  for (int64_t micro_step = 0; micro_step + 1 < options_.accumulation_steps; ++micro_step) {
    const auto unsynchronized = ddp_.no_sync();
    loss += backward(step, micro_step);
  }
  loss += backward(step, options_.accumulation_steps - 1);
  ddp_.sync_buffers();  // Now, and not in the next forward pass: replicas are equal between steps.
  settle_buckets();
  if (recovers_) {
    collectives::wait_for_results(ddp_.process_group());  // The update must not use what a lost rank has left.
  }
  ++counters.window_batches;
  const bool is_taken = gradients_can_be_used();
  if (recovers_ && sharded_ && sharded_->parts().has_copies()) {
    agree_on({.is_taken = is_taken, .loss = loss, .counters = counters});
  }
  if (is_taken) {
    window_loss_ += loss;
    update(counters);
  } else {
    skip(counters);
  }
  follow_rounds(counters);
}

// Reports, evaluations and checkpoints since the last round are no time of training.
void OptimizerSteps::begin_step() {
  if (outer_) outer_->restart_clock();
}

// The ranks' Reducers agree on their buckets after the first backward pass. If that chooses their size, new Reducers
// agree once more. Later, ranks take different numbers of passes.
void OptimizerSteps::settle_buckets() {
  if (!holds_round_) return;
  const bool was_chosen = ddp_.bucket_choice().has_value();
  const bool is_settled = ddp_.settle_buckets();
  if (is_settled && ddp_.bucket_choice().has_value() == was_chosen) {
    holds_round_ = false;
    outer_->release_round();
  }
}

// The batches of steps over which this rank jumps are not drawn. A rank that has no more steps to take waits for the
// others.
void OptimizerSteps::follow_rounds(Counters& counters) {
  if (!outer_) return;
  if (counters.step == options_.steps) outer_->end_round();
  if (counters.step != outer_->steps()) {
    counters.step = outer_->steps();
    prepare(counters.step + 1, /*micro_step=*/0);
  }
}

// A step changes what a rank holds, and cannot be undone. So a rank takes it only once all ranks can do so alone: if
// one of them is lost afterwards, the others end up with the same step. A rank that did not hear of all others keeps
// what it needs for the step, which they may have taken.
void OptimizerSteps::agree_on(const StepInDoubt& step) {
  const bool can_end = !step.is_taken || sharded_->parts().share_gradients();
  if (can_end) {
    in_doubt_ = step;
  }
  const std::exception_ptr failure = sharded_->parts().meet();
  in_doubt_.reset();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

Counters OptimizerSteps::take_step_in_doubt() {
  const StepInDoubt step = *std::exchange(in_doubt_, std::nullopt);
  Counters counters = step.counters;
  if (step.is_taken) {
    window_loss_ += step.loss;
    prepare_update(counters);
    sharded_->parts().step_alone();
  } else {
    skip(counters);
  }
  return counters;
}

void OptimizerSteps::finish_step_alone() {
  if (!sharded_) {
    return;
  }
  try {
    sharded_->finish_step();
  } catch (const std::exception&) {  // It may also have failed before.
  }
  sharded_->parts().finish_held();
}

// The forward passes have written the buffers.
void OptimizerSteps::skip(Counters& counters) {
  before_->restore();
  ++counters.skipped_steps;
  counters.skipped_in_a_row = counters.skipped_in_a_row.value_or(0) + 1;
  if (!own_gradients_ || !own_gradients_->were_finite()) {
    ++nonfinite_steps_;
  }
  if (outer_) {
    outer_->skip_step();
  }
}

at::Tensor OptimizerSteps::zero() const {
  return at::zeros({}, at::TensorOptions(at::kDouble).device(parameters_[0].device()));
}

// Returns the loss, a scalar on the device, so that the mean over ranks of the sum of all passes is the mean over the
// batch. Does not wait for a GPU, which computes while the next batch is made.
at::Tensor OptimizerSteps::backward(int64_t step, int64_t micro_step) {
  const bool is_last = micro_step + 1 == options_.accumulation_steps;
  const auto parts = static_cast<double>(options_.accumulation_steps);
  const double weight = plan_.weight(rank_, micro_step);
  const bool is_even = plan_.is_even();
  if (clock_) clock_->begin();
  const at::Tensor loss = forward(feed_.take());
  const auto scaled = [&](const at::Tensor& value) { return scaler_ ? scaler_->scale(value) : value; };
  if (is_even) {
    ddp_.backward(scaled(loss / parts));
  } else {
    ddp_.backward(scaled(loss), weight);
  }
  if (clock_) {
    const double waited = ddp_.take_waited_seconds();
    is_last ? clock_->end_averaged_pass(waited) : clock_->end_local_pass(waited);
  }
  if (is_last && share_chooser_) choose_shares(step);
  prepare(is_last ? step + 1 : step, is_last ? 0 : micro_step + 1);
  const at::Tensor value = loss.detach();  // The backward pass may have computed it.
  return is_even ? value / parts : value * (weight * static_cast<double>(plan_.options().world_size));
}

// All ranks decide in the same step, before its last batch is followed by the first of the next step.
void OptimizerSteps::choose_shares(int64_t step) {
  const auto chosen = share_chooser_->end_step(clock_->take_computing_seconds());
  if (!chosen) return;
  use_shares(chosen->samples);
  if (observer_ != nullptr) {
    observer_->on_shares({.step = step, .samples = chosen->samples, .seconds_per_sample = chosen->seconds_per_sample});
  }
}

void OptimizerSteps::use_shares(const std::vector<int64_t>& shares) {
  data::BatchPlanOptions parts = plan_.options();
  parts.shares = shares;
  plan_ = data::BatchPlan(parts);
}

// The exchange of the last step's parameters ends while the layers before them compute.
at::Tensor OptimizerSteps::forward(const models::Batch& batch) {
  models::Model& model = *ddp_.module();
  if (sharded_ && model.announces_layers()) {
    model.set_layer_gate(
        [this](const torch::nn::Module& layer) { leave_out([&] { sharded_->wait_for(layer.parameters()); }); });
  } else {
    leave_out([&] { finish_step(); });
  }
  const auto remove_gate = c10::make_scope_exit([&] { model.set_layer_gate({}); });
  const Autocast autocast(batch.inputs.device().type(), options_.precision);
  at::Tensor loss = ddp_.forward(batch);
  leave_out([&] { finish_step(); });
  return loss;
}

// Prepares the batch of that micro-step; does nothing after the last step.
void OptimizerSteps::prepare(int64_t step, int64_t micro_step) {
  if (step <= options_.steps) {
    if (clock_) clock_->begin();
    feed_.prepare(plan_.samples(order_, rank_, step - 1, micro_step));
    if (clock_) clock_->end_batch();
  }
}

// Whether to take the step; then the gradients are the loss's, unscaled.
bool OptimizerSteps::gradients_can_be_used() {
  if (!scaler_) {
    return can_be_used_unscaled();
  }
  const bool are_finite = unscale();
  if (scaler_->change() != 1) {
    ddp_.rescale_hook_state(scaler_->change());  // The hook's state is of scaled gradients.
  }
  return are_finite;
}

// The norm shows it. Clipping needs the norm as well, so a step waits for a GPU only once. On the CPU, a step without
// clipping needs no norm. With shards over all ranks, a rank knows the averages of its shard only. Ranks that recover
// need the norm in any case: a rank steps its shard only if all ranks of its node have come that far (last_point.h).
bool OptimizerSteps::can_be_used_unscaled() {
  if (sharded_) {
    const bool is_needed = options_.skip_nonfinite_steps || options_.clip_grad_norm > 0 || recovers_;
    norm_ = is_needed ? sharded_->gradient_norm() : 0;
    return !options_.skip_nonfinite_steps || std::isfinite(norm_);
  }
  if (options_.clip_grad_norm == 0 && parameters_[0].is_cpu()) {
    return !options_.skip_nonfinite_steps || gradients_are_finite(parameters_);
  }
  if (options_.skip_nonfinite_steps || options_.clip_grad_norm > 0) {
    norm_ = gradient_norm(parameters_).item<double>();
  }
  return !options_.skip_nonfinite_steps || are_finite_by_norm(norm_, parameters_);
}

bool OptimizerSteps::unscale() {
  const GradScaler::Unscaled unscaled =
      sharded_ ? scaler_->unscale_and_measure(*sharded_) : scaler_->unscale_and_measure(parameters_);
  norm_ = unscaled.norm;
  return unscaled.are_finite;
}

// Counts the step, and sets what the optimizer needs for it.
void OptimizerSteps::prepare_update(Counters& counters) {
  const double rate = learning_rate_of(counters.step);
  const double peak = options_.learning_rate.peak;
  set_learning_rates(*optimizer_, rate, rate * (options_.adamw_learning_rate.value_or(peak) / peak));
  if (options_.clip_grad_norm > 0) {
    counters.gradient_norm = norm_;  // before clipping
    scale_next_step(*optimizer_, clip_factor(norm_, options_.clip_grad_norm));
  }
  ++counters.window_steps;
  counters.skipped_in_a_row = 0;
}

void OptimizerSteps::update(Counters& counters) {
  prepare_update(counters);
  if (outer_) {
    outer_->step();
  } else if (sharded_) {
    is_torn_ = true;
    sharded_->start_step();
    is_torn_ = false;
  } else {
    optimizer_->step();
  }
}

}  // namespace narrowcast::training

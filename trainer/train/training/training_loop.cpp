#include "trainer/train/training/training_loop.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/ddp/recovery/stop_agreement.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "trainer/base/process/process_memory.h"
#include "trainer/train/training/evaluation.h"
#include "trainer/train/training/last_point.h"
#include "trainer/train/training/optimizer_steps.h"
#include "trainer/train/training/replicas.h"
#include "trainer/train/training/window.h"

namespace narrowcast::training {
namespace {

using Clock = std::chrono::steady_clock;

// One training, from the first step to the last.
class TrainingRun {
 public:
  TrainingRun(const TrainingSetup& setup, const TrainingOptions& options)
      : setup_(setup),
        options_(options),
        steps_(setup, options),
        last_point_(steps_, setup.checkpoints.surviving),
        stop_agreement_(setup.group, setup.checkpoints.asked_to_stop),
        window_of_rounds_(setup.group->getSize(), steps_.groups()) {
    if (!steps_.has_quorum()) return;
    const auto notes = [this] {
      return WindowOfRounds::notes_of(take_window(steps_, counters_), setup_.group->getRank(),
                                      setup_.checkpoints.asked_to_stop);
    };
    steps_.outer()->set_notes(notes, &WindowOfRounds::combined);
  }

  TrainingResult run() {
    try {
      TrainingResult result = train();
      last_point_.leave(phase_);
      return result;
    } catch (const std::exception&) {  // A GPU may fail in any way when collectives are aborted.
      leave_last_point();
      throw;
    }
  }

 private:
  // If even that fails, another rank has the state.
  void leave_last_point() noexcept {
    try {
      last_point_.leave(phase_);
    } catch (const std::exception&) {
    }
  }

  TrainingResult train() {
    if (setup_.checkpoints.restored != nullptr) resume(*setup_.checkpoints.restored);
    report_decision();
    window_began_ = Clock::now();
    stop_signal_ = stop_agreement_.before_first_step();
    if (stop_signal_ == recovery::kNewcomers) {
      stop_signal_ = 0;  // They are taken in after a step.
    }
    if (stop_signal_ != 0 && !is_over() && setup_.checkpoints.is_reported) {
      preempted_ = {.signal = stop_signal_, .step = counters_.step};
      return result();
    }
    take_steps();
    stop_agreement_.finish();
    return result();
  }

  void take_steps() {
    duties_done_at_ = counters_.step;
    if (!setup_.checkpoints.is_reported) {
      --duties_done_at_;
      finish_step();
    }
    steps_.begin_at(counters_.step + 1);
    while (!is_over() && !diverged_at_.has_value() && !preempted_.has_value() && !takes_in_newcomers_) {
      const int64_t steps_before = counters_.step;
      phase_ = Phase::kInStep;
      steps_.take_next(counters_);
      phase_ = Phase::kBetweenSteps;
      report_buckets(steps_before);
      last_point_.remember(counters_now(), Reports::kDue);
      is_in_rounds() ? finish_rounds() : finish_step();
    }
  }

  // Whether no rank may wait for all others, except for what all do together, such as an evaluation.
  bool is_in_rounds() const { return steps_.has_quorum() && counters_.step > setup_.outer->warmup_steps(); }

  // A step of a late rank may end several rounds, among which its time is divided equally. A checkpoint may have ended
  // one more, with the step that is over.
  void finish_rounds() {
    const std::vector<OuterOptimizer::Round> rounds = steps_.outer()->take_rounds();
    const auto began = std::max(rounds_ended_, window_began_);
    const auto now = Clock::now();
    for (size_t i = 0; i < rounds.size(); ++i) {
      rounds_ended_ = began + (now - began) * static_cast<int64_t>(i + 1) / static_cast<int64_t>(rounds.size());
      finish_round(rounds[i]);
    }
  }

  void finish_round(const OuterOptimizer::Round& round) {
    window_of_rounds_.add(round, setup_.observer);
    counters_.step = round.steps;
    if (counters_.step == options_.steps) {  // The last report and evaluation include late ranks.
      steps_.outer()->finish();
      for (const auto& rest : steps_.outer()->take_rounds()) window_of_rounds_.add(rest, setup_.observer);
    }
    if (round.steps > duties_done_at_) finish_step();
  }

  // Does what is due after a step, or after a round in which ranks take different numbers of steps.
  void finish_step() {
    if (!steps_.steps_are_common()) {
      return;
    }
    if (is_due(options_.log_every)) {
      report();
      report_decision();
    }
    if (is_due(options_.eval_every)) {
      evaluate();
      if (is_over() && (is_in_rounds() ? window_of_rounds_.has_steps() : counters_.window_batches > 0)) {
        report();  // Reports the rest of the steps if the training ended early.
      }
    }
    if (!diverged_at_.has_value() && options_.check_replicas_every > 0 && is_due(options_.check_replicas_every)) {
      check_replicas();
    }
    if (is_due(setup_.checkpoints.every)) {
      save();
    }
    stop_if_asked();
    duties_done_at_ = counters_.step;
  }

  // A collective: all ranks resume, or none does. Frees the memory of the checkpoint.
  void resume(checkpoint::Restored& restored) {
    const std::string failure =
        first_failure(setup_.group, [&] { counters_ = load_training(restored, steps_.parts()); });
    NARROWCAST_CHECK_INPUT(failure.empty(), failure);
    steps_.set_window_loss(counters_.window_loss);
    if (options_.early_stop == 0) {  // They would not be kept up to date.
      counters_.best_validation_loss.reset();
      counters_.evaluations_since_best = 0;
    }
    const auto remember = [&] {
      const Reports reports = setup_.checkpoints.is_reported ? Reports::kDone : Reports::kDue;
      last_point_.remember_recovered(counters_, reports, restored);
    };
    restored.pieces ? load_pieces(restored, steps_.parts(), remember) : remember();
    restored.replica.clear();
    restored.former = {};
    restored.pieces.reset();
  }

  // Equal on all ranks, which have the same bits of validation losses.
  bool is_over() const {
    const bool stops_early = options_.early_stop > 0 && counters_.evaluations_since_best >= options_.early_stop;
    return counters_.step == options_.steps || stops_early;
  }

  // After every `every` steps (0: none), at the first duties at or after that step, and after the last step.
  bool is_due(int64_t every) const {
    return is_over() || (every > 0 && counters_.step / every > duties_done_at_ / every);
  }

  // A collective. If the bucket size is not chosen yet, another step is needed before there can be a checkpoint.
  void stop_if_asked() {
    if (is_over() || diverged_at_.has_value()) {
      return;
    }
    if (is_in_rounds()) {
      stop_agreement_.finish();  // The round of the warm-up.
      stop_signal_ = std::max(stop_signal_, window_of_rounds_.take_signal());
    } else if (stop_signal_ == 0) {
      stop_signal_ = steps_.ends_rounds_by_time() ? stop_agreement_.at_meeting() : stop_agreement_.after_step();
    }
    if (stop_signal_ == recovery::kNewcomers) {
      stop_signal_ = 0;
      stop_for_newcomers();
    }
    if (stop_signal_ == 0) return;
    if (saved_step_ != counters_.step) {
      save();
    }
    if (saved_step_ == counters_.step) {
      preempted_ = {.signal = stop_signal_, .step = counters_.step, .is_saved = true};
    }
  }

  // A collective. If this state is neither in memory nor in a checkpoint yet, the newcomers wait.
  void stop_for_newcomers() {
    last_point_.remember_for_newcomers(counters_now());
    if (!last_point_.is_known() && saved_step_ != counters_.step) {
      save();
    }
    takes_in_newcomers_ = last_point_.is_known() || saved_step_ == counters_.step;
  }

  // With an outer optimizer the result is the outer parameters, unless the training has diverged or was interrupted.
  TrainingResult result() {
    steps_.finish_step();
    const bool goes_on_later = preempted_.has_value() || takes_in_newcomers_;
    if (auto* const outer = steps_.outer(); outer != nullptr && !goes_on_later) {
      diverged_at_ ? static_cast<void>(outer->state()) : outer->finish();  // A late rank may still need messages.
    }
    const bool ends_early = counters_.step < options_.steps && !diverged_at_.has_value() && !goes_on_later;
    return {.validation_loss = counters_.validation_loss,
            .validation_accuracy = counters_.validation_accuracy,
            .training_loss = counters_.training_loss,
            .payload_bytes_sent = steps_.payload_bytes_sent(),
            .payload_bytes_without_hook = steps_.model().payload_bytes_without_hook(),
            .measuring_bytes_sent = steps_.measuring_bytes_sent(),
            .compression = steps_.model().compression(),
            .peak_memory_bytes = std::max(window_.peak_memory_bytes, program::peak_memory_bytes()),
            .seconds = counters_.seconds,
            .skipped_steps = counters_.skipped_steps,
            .outer = outer_report(steps_.outer()),
            .diverged_at = diverged_at_,
            .gave_up_after = gave_up_after_,
            .best_validation_loss = counters_.best_validation_loss,
            .stopped_early_at = ends_early ? std::optional(counters_.step) : std::nullopt,
            .preempted = preempted_,
            .takes_in_newcomers = takes_in_newcomers_};
  }

  // Collective: all ranks learn the mean loss, if there was a step, which ranks skipped, and thus whether to continue.
  void report() {
    window_ = is_in_rounds() ? window_of_rounds_.take_window()
                             : window_of_all_ranks(setup_.group, take_window(steps_, counters_));
    const double seconds = window_seconds();
    // With an outer optimizer, most steps wait for few ranks, and the outer exchange waits elsewhere.
    const std::optional<double> waited = steps_.take_exchange_seconds();
    std::optional<reporting::ExchangeReport> exchange;
    if (waited && steps_.outer() == nullptr && setup_.group->getSize() > 1) {
      exchange = exchange_of_all_ranks(setup_.group, *waited, seconds);
    }
    counters_.seconds += seconds;
    counters_.training_loss = window_.loss;
    const std::optional<double> parameter_difference = steps_.parameter_difference();
    const bool gives_up = window_.skipped && window_.skipped->in_a_row >= options_.max_skipped_steps;
    if (gives_up) gave_up_after_ = window_.skipped;
    if (gives_up || (!std::isfinite(window_.loss) && (window_.has_loss || is_over()))) {
      diverged_at_ = counters_.step;
    }
    if (setup_.observer != nullptr) {
      reporting::StepReport report =
          step_report(steps_, counters_, window_, seconds, options_.batch_size * setup_.units_per_sample);
      report.parameter_difference = parameter_difference;
      report.exchange = exchange;
      setup_.observer->on_step(report);
    }
    counters_.window_seconds = 0;
    window_began_ = step_ended();
  }

  // Reports the hook's decision if it has changed.
  void report_decision() {
    if (setup_.observer == nullptr || steps_.model().hook_decision() == decision_) {
      return;
    }
    decision_ = steps_.model().hook_decision();
    setup_.observer->on_hook({.step = counters_.step, .hook = steps_.model().hook_name(), .decision = decision_});
  }

  // The end of the last round in rounds, else now.
  Clock::time_point step_ended() const { return is_in_rounds() ? rounds_ended_ : Clock::now(); }

  // Time of training since the last report.
  double window_seconds() const {
    return counters_.window_seconds + std::chrono::duration<double>(step_ended() - window_began_).count();
  }

  void leave_out(Clock::duration time) {
    window_began_ += time;
    rounds_ended_ += time;
  }

  Counters counters_now() const {
    Counters counters = counters_;
    counters.window_seconds = window_seconds();
    return counters;
  }

  void evaluate() {
    if (options_.eval_batches == 0 || diverged_at_.has_value()) {
      return;
    }
    steps_.finish_step();
    const auto began = Clock::now();
    std::optional<OuterOptimizer::OuterParameters> outer_parameters;
    if (steps_.outer() != nullptr) outer_parameters.emplace(*steps_.outer());
    const HeldOut held_out = evaluate_held_out(*setup_.model, setup_.dataset, setup_.group,
                                               evaluation_of(options_, steps_.plan().micro_batch()));
    counters_.validation_loss = held_out.loss;
    counters_.validation_accuracy = held_out.accuracy;
    if (!std::isfinite(held_out.loss)) {
      diverged_at_ = counters_.step;
    } else if (options_.early_stop > 0) {
      compare_with_best(counters_, *counters_.validation_loss);
    }
    if (setup_.observer != nullptr) {
      setup_.observer->on_evaluation(
          {.step = counters_.step, .loss = held_out.loss, .seconds = counters_.seconds, .accuracy = held_out.accuracy});
    }
    leave_out(Clock::now() - began);  // Evaluation is not training time.
  }

  // Reports the bucket size once it is chosen, after `step` steps.
  void report_buckets(int64_t step) {
    const std::optional<BucketChoice>& choice = steps_.model().bucket_choice();
    if (buckets_reported_ || !choice.has_value()) {
      return;
    }
    buckets_reported_ = true;
    if (setup_.observer != nullptr) setup_.observer->on_buckets(buckets_report(step, *choice));
  }

  // Collective. A corrupted replica must be neither trained further nor saved.
  void check_replicas() {
    if (!replicas_must_be_equal(setup_, steps_.model()) || checked_step_ == counters_.step) {
      return;
    }
    training::check_replicas(setup_.group, replicated_state(steps_.parts()), counters_.step);
    if (const auto held = pieces_held_twice(steps_.parts())) check_shards(setup_.group, *held, counters_.step);
    checked_step_ = counters_.step;
  }

  // Collective. A diverged training is not saved. Before the bucket size is settled, a checkpoint is impossible.
  void save() {
    if (setup_.checkpoints.writer == nullptr || diverged_at_.has_value()) {
      return;
    }
    const bool settled = steps_.model().settle_buckets();
    report_buckets(counters_.step);
    if (!settled) {
      return;
    }
    check_replicas();
    Counters counters = counters_now();
    counters.window_loss = steps_.window_loss();
    const auto began = Clock::now();
    const checkpoint::WriteReport written = setup_.checkpoints.writer->write(save_training(steps_.parts(), counters));
    saved_step_ = counters_.step;
    const std::chrono::duration<double> elapsed = Clock::now() - began;
    if (setup_.observer != nullptr) {
      setup_.observer->on_checkpoint(
          {.step = counters_.step, .path = written.path, .bytes = written.bytes, .seconds = elapsed.count()});
    }
    leave_out(Clock::now() - began);  // Checkpoints and observers' work for them are not training time either.
  }

  const TrainingSetup& setup_;
  const TrainingOptions& options_;
  OptimizerSteps steps_;
  LastPoint last_point_;
  recovery::StopAgreement stop_agreement_;
  WindowOfRounds window_of_rounds_;  // with a quorum, since the last report
  Counters counters_;
  Phase phase_ = Phase::kBetweenSteps;  // kInStep: take_next runs, or has thrown.
  int64_t duties_done_at_ = 0;          // The last step after which the duties of a step were done.
  int64_t checked_step_ = 0;            // At which the replicas were last compared.
  bool buckets_reported_ = false;
  std::optional<int64_t> saved_step_;  // of the last checkpoint
  std::optional<int64_t> diverged_at_;
  int stop_signal_ = 0;  // for which all ranks stop as soon as there is a checkpoint
  std::optional<Preemption> preempted_;
  bool takes_in_newcomers_ = false;
  std::string decision_;  // The last reported one.
  Window window_;         // Before the last report.
  std::optional<reporting::SkippedReport> gave_up_after_;
  Clock::time_point window_began_;
  Clock::time_point rounds_ended_;  // when the last round ended, as far as this rank can know
};

}  // namespace

TrainingResult train(const TrainingSetup& setup, const TrainingOptions& options) {
  check_training_options(options, setup.group->getSize());
  return TrainingRun(setup, options).run();
}

}  // namespace narrowcast::training

// Trainings with a quorum of outer steps, in which a test decides which ranks are late: it holds them before a pass
// until others have come far enough.
#pragma once

#include <ATen/ops/full_like.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/outer_options.h>
#include "tests/support/rank_progress.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/training/evaluation.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training::quorums {

using resuming::Models;

inline constexpr int64_t kEvery = 4;  // steps of a round

// Calls `before` with the number of the pass, 1, 2, ..., before each pass of training. It may return a factor of the
// loss.
class HeldModel : public models::Model {
 public:
  HeldModel(std::shared_ptr<models::Model> model, std::function<double(int64_t pass)> before)
      : model_(register_module("model", std::move(model))), before_(std::move(before)) {}
  at::Tensor forward(const models::Batch& batch) override {
    const double factor = is_training() ? before_(++passes_) : 1;
    at::Tensor loss = model_->forward(batch);
    return factor == 1 ? loss : loss * factor;
  }
  models::ModelOptions options() const override { return model_->options(); }

 private:
  std::shared_ptr<models::Model> model_;
  const std::function<double(int64_t pass)> before_;
  int64_t passes_ = 0;
};

// How far the ranks have come.
struct Places {
  explicit Places(int64_t ranks) : passes(ranks), reports(ranks) {}
  testing::RankProgress passes;   // that have begun
  testing::RankProgress reports;  // the step of the last report
};

inline OuterOptions quorum_of(int64_t quorum, WireFormat format = WireFormat::kFp32) {
  return OuterOptions()
      .sync_every(kEvery)
      .optimizer(OuterKind::kNesterov)
      .quorum(quorum)
      .wire({.format = format, .error_feedback = format != WireFormat::kFp32});
}

inline TrainingOptions options_of_quorum(int64_t steps = 60) {
  TrainingOptions options = testing::small_training();
  options.steps = steps;
  options.log_every = 2 * kEvery;
  return options;
}

struct QuorumRun {
  int64_t ranks = 3;
  int64_t width = 16;  // of the model
  TrainingOptions options = options_of_quorum();
  std::optional<OuterOptions> outer = quorum_of(2);
  DdpOptions ddp = resuming::small_buckets().hook("post_local_sgd").local({.group_size = 1});
  // Before a pass of a rank; returns a factor of the loss.
  std::function<double(Places& places, int64_t rank, int64_t pass)> before = [](Places&, int64_t, int64_t) {
    return 1.0;
  };
  // The signal that asks the rank to stop, from the pass on that it has begun; null: none.
  std::function<int(int64_t rank, int64_t pass)> signal = nullptr;
  std::string folder = {};                                          // of checkpoints; empty: none
  int64_t checkpoint_every = 1000;                                  // steps
  std::optional<int64_t> from = std::nullopt;                       // a step
  std::vector<std::optional<SurvivingState>>* surviving = nullptr;  // of each rank
  bool fails = false;                                               // c10::DistBackendError on all ranks
};

// The view of one rank.
struct SeenByRank : reporting::TrainingObserver {
  void on_step(const reporting::StepReport& report) override {
    steps.push_back(report);
    places->reports.set(rank, report.step);
  }
  void on_evaluation(const reporting::EvaluationReport& report) override { evaluations.push_back(report); }
  void on_absence(const reporting::AbsenceReport& report) override { absences.push_back(report); }
  void on_buckets(const reporting::BucketsReport& report) override { buckets.push_back(report); }

  int64_t rank = 0;
  Places* places = nullptr;
  std::vector<reporting::StepReport> steps;
  std::vector<reporting::EvaluationReport> evaluations;
  std::vector<reporting::AbsenceReport> absences;
  std::vector<reporting::BucketsReport> buckets;
  TrainingResult result;
  double loss_of_model = 0;  // of the trained model on the held-out data
  int64_t passes = 0;
};

inline Models models_for(const QuorumRun& run, std::vector<SeenByRank>& seen, Places& places, uint64_t seed) {
  Models models;
  for (int64_t rank = 0; rank < run.ranks; ++rank) {
    SeenByRank& own = seen[static_cast<size_t>(rank)];
    own.rank = rank;
    own.places = &places;
    const Models whole = resuming::models_of(1, {.name = {}, .width = run.width}, seed);
    models.push_back(std::make_shared<HeldModel>(whole[0], [&, rank](int64_t pass) {
      own.passes = pass;
      places.passes.set(rank, pass);
      return run.before(places, rank, pass);
    }));
  }
  return models;
}

struct Trained {
  std::vector<SeenByRank> seen;  // by rank
  Models models;
};

inline Trained train_on(const QuorumRun& run, uint64_t seed = 1) {
  Places places(run.ranks);
  Trained trained;
  trained.seen = std::vector<SeenByRank>(static_cast<size_t>(run.ranks));
  trained.models = models_for(run, trained.seen, places, seed);
  const data::TextDataset dataset = testing::small_text();
  testing::run_ranks(run.ranks, [&](int64_t rank, const ProcessGroupPtr& group) {
    SeenByRank& own = trained.seen[static_cast<size_t>(rank)];
    const auto& model = trained.models[static_cast<size_t>(rank)];
    std::unique_ptr<checkpoint::CheckpointWriter> writer;
    std::optional<checkpoint::ReadCheckpoint> read;
    Checkpoints checkpoints = {.every = run.checkpoint_every};
    if (run.from) {
      read = checkpoint::read_on_all_ranks(group, checkpoint::checkpoint_path(run.folder, *run.from));
      checkpoints.restored = &read->restored;
    } else if (!run.folder.empty()) {
      writer = std::make_unique<checkpoint::CheckpointWriter>(
          group, checkpoint::WriterOptions{.folder = run.folder, .keep = 0}, checkpoint::Description{});
      checkpoints.writer = writer.get();
    }
    if (run.signal) checkpoints.asked_to_stop = [&] { return run.signal(rank, own.passes); };
    if (run.surviving != nullptr) checkpoints.surviving = &run.surviving->at(static_cast<size_t>(rank));
    const auto work = [&] {
      own.result = train({.model = model,
                          .dataset = dataset,
                          .group = group,
                          .ddp = run.ddp,
                          .outer = run.outer,
                          .units_per_sample = testing::kSmallContext,
                          .observer = &own,
                          .checkpoints = checkpoints},
                         run.options);
    };
    if (run.fails) {
      EXPECT_THROW(work(), c10::DistBackendError);
      return;
    }
    work();
    const int64_t micro_batch = batch_plan(run.options, run.ranks).micro_batch();
    own.loss_of_model = evaluate_held_out(*model, dataset, group, evaluation_of(run.options, micro_batch)).loss;
  });
  return trained;
}

// Holds `late` before its second pass until all others have reported `step`.
inline auto holds_until_reported(std::vector<int64_t> late, int64_t step) {
  return [late = std::move(late), step](Places& places, int64_t rank, int64_t pass) {
    const auto is_late = [&](int64_t other) { return std::ranges::find(late, other) != late.end(); };
    if (pass == 2 && is_late(rank)) {
      places.reports.wait_until([&](const std::vector<int64_t>& reports) {
        for (size_t other = 0; other < reports.size(); ++other) {
          if (!is_late(static_cast<int64_t>(other)) && reports[other] < step) return false;
        }
        return true;
      });
    }
    return 1.0;
  };
}

inline void expect_equal_models(const Models& models, const Models& others) {
  for (size_t rank = 0; rank < models.size(); ++rank) {
    EXPECT_TRUE(resuming::equal_bits(*models[rank], *others[rank % others.size()])) << "rank " << rank;
  }
}

}  // namespace narrowcast::training::quorums

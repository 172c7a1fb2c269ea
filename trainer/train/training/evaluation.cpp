#include "trainer/train/training/evaluation.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "trainer/ddp/module/broadcast.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/optimization/saved_buffers.h"

namespace narrowcast::training {
namespace {

// Held-out samples are taken in one fixed random order, so that a few of them represent all.
constexpr uint64_t kOrderSeed = 0;

// Evaluation mode from here to the end of the scope.
class EvaluationMode {
 public:
  explicit EvaluationMode(models::Model& model) : model_(model), was_training_(model.is_training()) { model_.eval(); }
  ~EvaluationMode() { model_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  models::Model& model_;
  bool was_training_;
  c10::AutoGradMode no_gradients_{false};
};

// Puts rank 0's buffers, which are also the saved ones, on all ranks, from here to the end of the scope. In training,
// each rank's batch norm buffers follow its own samples.
class BuffersOfRankZero {
 public:
  // A collective.
  BuffersOfRankZero(const models::Model& model, const ProcessGroupPtr& group) : own_(model) {
    own_.save();
    broadcast_from_rank_0(group, model.buffers(), "broadcast of buffers");
  }
  ~BuffersOfRankZero() { own_.restore(); }
  BuffersOfRankZero(const BuffersOfRankZero&) = delete;
  BuffersOfRankZero& operator=(const BuffersOfRankZero&) = delete;

 private:
  SavedBuffers own_;
};

// Sums over the samples of one rank.
struct HeldOutSums {
  void add(const models::Evaluated& evaluated, double samples) {
    loss += evaluated.loss.item<double>() * samples;
    if (evaluated.accuracy.defined()) {
      right += evaluated.accuracy.item<double>() * samples;
      judged += samples;
    }
  }

  double loss = 0;
  double right = 0;   // right answers, among the judged samples
  double judged = 0;  // samples whose answers were counted
};

// Evaluates held-out batches of one rank.
class Evaluator {
 public:
  Evaluator(models::Model& model, const data::Dataset& dataset, const EvaluationOptions& options)
      : model_(model),
        dataset_(dataset),
        options_(options),
        order_(dataset.held_out_size(), kOrderSeed),
        samples_(std::min(options.samples, dataset.held_out_size())) {
    TORCH_CHECK_VALUE(options.samples >= 1, "samples: must be at least 1, but is ", options.samples);
    TORCH_CHECK_VALUE(options.batch >= 1, "batch: must be at least 1, but is ", options.batch);
    const std::vector<at::Tensor> parameters = model.parameters();
    if (!parameters.empty()) device_ = parameters[0].device();
  }

  // Over all ranks.
  int64_t samples() const { return samples_; }

  std::vector<HeldOutBatch> batches(const EvaluatingRank& of) const {
    return held_out_batches(samples_, of, options_.batch, model_.evaluated_sizes());
  }

  models::Evaluated evaluate(const HeldOutBatch& batch) const {
    std::vector<int64_t> indices;
    for (int64_t position = batch.begin; position < batch.end; ++position) {
      indices.push_back(order_.at(position));
    }
    const Autocast autocast(device_.type(), options_.precision);
    return model_.evaluate(on_device(dataset_.held_out_batch(indices), device_));
  }

 private:
  models::Model& model_;
  const data::Dataset& dataset_;
  const EvaluationOptions options_;
  const data::SampleOrder order_;
  const int64_t samples_;
  at::Device device_ = at::kCPU;
};

}  // namespace

EvaluationOptions evaluation_of(const TrainingOptions& options, int64_t micro_batch) {
  return {.samples = options.eval_batches * options.batch_size, .batch = micro_batch, .precision = options.precision};
}

std::vector<HeldOutBatch> held_out_batches(int64_t samples, const EvaluatingRank& of, int64_t batch,
                                           const models::Model::BatchSizes& sizes) {
  TORCH_CHECK_VALUE(samples >= sizes.least, "data: an evaluation has ", samples, " held-out samples, but the model ",
                    "takes at least ", sizes.least, " at once; hold out more, or set eval_batches = 0");
  const int64_t shares = std::min(of.world_size, samples / sizes.least);
  if (of.rank >= shares) return {};
  const int64_t begin = samples * of.rank / shares;
  const int64_t end = samples * (of.rank + 1) / shares;
  // A rest of least - 1 samples fits as well.
  const int64_t size = std::max(std::min(batch, sizes.most - sizes.least + 1), sizes.least);
  std::vector<HeldOutBatch> batches;
  for (int64_t first = begin; first < end; first = batches.back().end) {
    batches.push_back({.begin = first, .end = end - first < size + sizes.least ? end : first + size});
  }
  return batches;
}

HeldOut evaluate_held_out(models::Model& model, const data::Dataset& dataset, const ProcessGroupPtr& group,
                          const EvaluationOptions& options) {
  const Evaluator evaluator(model, dataset, options);
  const EvaluationMode mode(model);
  const BuffersOfRankZero buffers(model, group);
  HeldOutSums sums;
  for (const HeldOutBatch& batch : evaluator.batches({.rank = group->getRank(), .world_size = group->getSize()})) {
    sums.add(evaluator.evaluate(batch), static_cast<double>(batch.end - batch.begin));
  }
  const std::vector<double> of_all = all_reduce_sum(group, {sums.loss, sums.right, sums.judged});
  HeldOut result = {.loss = of_all[0] / static_cast<double>(evaluator.samples())};
  if (of_all[2] > 0) {
    result.accuracy = of_all[1] / of_all[2];
  }
  return result;
}

void try_evaluation(models::Model& model, const data::Dataset& dataset, const EvaluatingRank& of,
                    const EvaluationOptions& options) {
  const Evaluator evaluator(model, dataset, options);
  const std::vector<HeldOutBatch> batches = evaluator.batches(of);
  if (batches.empty()) return;
  on_trial(model, [&] {
    const EvaluationMode mode(model);
    evaluator.evaluate(
        *std::ranges::min_element(batches, {}, [](const HeldOutBatch& batch) { return batch.end - batch.begin; }));
  });
}

at::Tensor sum_over_ranks(const ProcessGroupPtr& group, at::Tensor term, const std::string& step) {
  std::vector<at::Tensor> sum = {std::move(term)};
  with_network_errors(group->getRank(), step, [&] { group->allreduce(sum)->wait(); });
  return sum[0];
}

}  // namespace narrowcast::training

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

std::vector<int64_t> samples_at(const data::SampleOrder& order, int64_t begin, int64_t end) {
  std::vector<int64_t> samples;
  for (int64_t position = begin; position < end; ++position) {
    samples.push_back(order.at(position));
  }
  return samples;
}

}  // namespace

HeldOut evaluate_held_out(models::Model& model, const data::Dataset& dataset, const ProcessGroupPtr& group,
                          const EvaluationOptions& options) {
  TORCH_CHECK_VALUE(options.samples >= 1, "samples: must be at least 1, but is ", options.samples);
  TORCH_CHECK_VALUE(options.batch >= 1, "batch: must be at least 1, but is ", options.batch);
  const EvaluationMode mode(model);
  const BuffersOfRankZero buffers(model, group);
  const data::SampleOrder order(dataset.held_out_size(), kOrderSeed);
  const int64_t samples = std::min(options.samples, dataset.held_out_size());
  const int64_t begin = samples * group->getRank() / group->getSize();
  const int64_t end = samples * (group->getRank() + 1) / group->getSize();
  const std::vector<at::Tensor> parameters = model.parameters();
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters[0].device();
  HeldOutSums sums;
  for (int64_t first = begin; first < end; first += options.batch) {
    const std::vector<int64_t> indices = samples_at(order, first, std::min(first + options.batch, end));
    const Autocast autocast(device.type(), options.precision);
    sums.add(model.evaluate(on_device(dataset.held_out_batch(indices), device)), static_cast<double>(indices.size()));
  }
  const std::vector<double> of_all = all_reduce_sum(group, {sums.loss, sums.right, sums.judged});
  HeldOut result = {.loss = of_all[0] / static_cast<double>(samples)};
  if (of_all[2] > 0) {
    result.accuracy = of_all[1] / of_all[2];
  }
  return result;
}

at::Tensor sum_over_ranks(const ProcessGroupPtr& group, at::Tensor term, const std::string& step) {
  std::vector<at::Tensor> sum = {std::move(term)};
  with_network_errors(group->getRank(), step, [&] { group->allreduce(sum)->wait(); });
  return sum[0];
}

}  // namespace narrowcast::training

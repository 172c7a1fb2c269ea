#include "trainer/train/training/evaluation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/data/dataset.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;
using testing::small_models;
using testing::small_text;

std::vector<double> losses_by_rank(int64_t world_size, const EvaluationOptions& options) {
  const data::TextDataset dataset = small_text();
  const auto models = small_models(world_size);
  std::vector<double> losses(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    losses[rank] = evaluate_held_out(*models[rank], dataset, group, options).loss;
  });
  return losses;
}

// The expected mean: one sample at a time, without ranks.
double plain_loss(int64_t samples) {
  const data::TextDataset dataset = small_text();
  const auto model = small_models(1)[0];
  const data::SampleOrder order(dataset.held_out_size(), 0);
  double sum = 0;
  for (int64_t i = 0; i < samples; ++i) {
    sum += model->forward(dataset.held_out_batch({order.at(i)})).item<double>();
  }
  return sum / static_cast<double>(samples);
}

class HeldOutLossTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(HeldOutLossTest, IsTheMeanOverTheSamplesOfAllRanks) {
  // 13 samples in batches of 3: the ranks' parts and last batches differ in size.
  const std::vector<double> losses = losses_by_rank(GetParam(), {.samples = 13, .batch = 3});
  // Each loss is a float32 mean near 3 with some dozens of rounding errors of 2^-24.
  EXPECT_NEAR(losses[0], plain_loss(13), 3 * 64 * std::ldexp(1, -24));
  for (const double loss : losses) {
    EXPECT_EQ(loss, losses[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, HeldOutLossTest, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST(HeldOutLoss, TakesAllSamplesIfThereAreFewer) {
  const int64_t all = small_text().held_out_size();
  EXPECT_NEAR(losses_by_rank(2, {.samples = 1'000'000, .batch = 16})[0], plain_loss(all), 3 * 64 * std::ldexp(1, -24));
}

TEST(HeldOutLoss, WorksWithFewerSamplesThanRanks) {
  EXPECT_NEAR(losses_by_rank(4, {.samples = 2, .batch = 16})[3], plain_loss(2), 3 * 64 * std::ldexp(1, -24));
}

std::vector<int64_t> batch_sizes(int64_t samples, const EvaluatingRank& of, int64_t batch,
                                 const models::Model::BatchSizes& sizes) {
  std::vector<int64_t> result;
  int64_t last = -1;
  for (const auto& [begin, end] : held_out_batches(samples, of, batch, sizes)) {
    EXPECT_TRUE(last == -1 || begin == last);
    last = end;
    result.push_back(end - begin);
  }
  return result;
}

TEST(HeldOutBatches, ARestThatIsTooSmallJoinsTheBatchBeforeIt) {
  using ::testing::ElementsAre;
  EXPECT_THAT(batch_sizes(33, {}, 32, {}), ElementsAre(32, 1));
  EXPECT_THAT(batch_sizes(33, {}, 32, {.least = 2}), ElementsAre(33));
  EXPECT_THAT(batch_sizes(34, {}, 32, {.least = 2}), ElementsAre(32, 2));
  EXPECT_THAT(batch_sizes(33, {}, 32, {.least = 2, .most = 32}), ElementsAre(31, 2));
  EXPECT_THAT(batch_sizes(7, {}, 1, {.least = 3}), ElementsAre(3, 4));
  EXPECT_THAT(batch_sizes(40, {}, 32, {.most = 16}), ElementsAre(16, 16, 8));
}

// All samples are evaluated once, in batches that the model takes.
TEST(HeldOutBatches, CoverAllSamplesOverAllRanks) {
  for (const int64_t least : {1, 2, 5}) {
    for (int64_t samples = least; samples < 30; ++samples) {
      for (int64_t ranks = 1; ranks <= 4; ++ranks) {
        int64_t next = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const auto& [begin, end] : held_out_batches(samples, {rank, ranks}, 8, {.least = least, .most = 12})) {
            EXPECT_EQ(begin, next);
            EXPECT_GE(end - begin, least) << samples << " samples, " << ranks << " ranks";
            EXPECT_LE(end - begin, 12) << samples << " samples, " << ranks << " ranks";
            next = end;
          }
        }
        EXPECT_EQ(next, samples);
      }
    }
  }
}

TEST(HeldOutBatches, FewerSamplesThanTheModelTakesAreAnError) {
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { held_out_batches(1, {}, 32, {.least = 2}); }),
            "data: an evaluation has 1 held-out samples, but the model takes at least 2 at once; hold out more, or set "
            "eval_batches = 0");
}

TEST(HeldOutLoss, LeavesModeAndGradientsAlone) {
  const data::TextDataset dataset = small_text();
  const auto model = small_models(1)[0];
  run_ranks(1, [&](int64_t, const ProcessGroupPtr& group) {
    evaluate_held_out(*model, dataset, group, {.samples = 4, .batch = 4});
    EXPECT_TRUE(model->is_training());
    model->eval();
    evaluate_held_out(*model, dataset, group, {.samples = 4, .batch = 4});
    EXPECT_FALSE(model->is_training());
  });
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(HeldOutLoss, RefusesEmptyLooks) {
  EXPECT_THROW(losses_by_rank(1, {.samples = 0, .batch = 4}), c10::ValueError);
  EXPECT_THROW(losses_by_rank(1, {.samples = 4, .batch = 0}), c10::ValueError);
}

// A model whose loss is a buffer, and of whose four answers one is right.
class BufferModel : public models::Model {
 public:
  explicit BufferModel(double value) : buffer(register_buffer("buffer", at::full({}, value, at::kDouble))) {}
  at::Tensor forward(const models::Batch&) override { return buffer.clone(); }
  models::Evaluated evaluate(const models::Batch& batch) override {
    return {.loss = forward(batch), .accuracy = at::full({}, 0.25, at::kDouble)};
  }
  models::ModelOptions options() const override { return {}; }
  at::Tensor buffer;
};

class SizeModel : public BufferModel {
 public:
  SizeModel() : BufferModel(1) {}
  models::Evaluated evaluate(const models::Batch& batch) override {
    EXPECT_FALSE(is_training());
    EXPECT_FALSE(c10::GradMode::is_enabled());
    buffer.add_(1);
    sizes.push_back(batch.inputs.size(0));
    return BufferModel::evaluate(batch);
  }
  std::vector<int64_t> sizes;
};

// 7 of the 13 samples are those of rank 1: 3, 3 and 1.
TEST(TryEvaluation, EvaluatesTheSmallestBatchAndChangesNothing) {
  SizeModel model;
  try_evaluation(model, small_text(), {.rank = 1, .world_size = 2}, {.samples = 13, .batch = 3});
  EXPECT_THAT(model.sizes, ::testing::ElementsAre(1));
  EXPECT_TRUE(model.is_training());
  EXPECT_EQ(model.buffer.item<double>(), 1);
}

// Rank 0's buffers are saved.
TEST(HeldOut, IsEvaluatedWithTheBuffersOfRankZero) {
  const data::TextDataset dataset = small_text();
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    BufferModel model(static_cast<double>(rank + 1));
    EXPECT_EQ(evaluate_held_out(model, dataset, group, {.samples = 12, .batch = 4}).loss, 1);
    EXPECT_EQ(model.buffer.item<double>(), static_cast<double>(rank + 1)) << "its own afterwards";
  });
}

// Two ranks of four have no sample.
TEST(HeldOut, AccuracyIsOfAllSamplesAndOfModelsThatCount) {
  const data::TextDataset dataset = small_text();
  const auto gpt = small_models(4);
  run_ranks(4, [&](int64_t rank, const ProcessGroupPtr& group) {
    BufferModel model(1);
    EXPECT_EQ(evaluate_held_out(model, dataset, group, {.samples = 2, .batch = 4}).accuracy, 0.25);
    EXPECT_FALSE(evaluate_held_out(*gpt[rank], dataset, group, {.samples = 2, .batch = 4}).accuracy.has_value());
  });
}

TEST(SumOverRanks, IsThatOfAllRanksAndInPlace) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    const at::Tensor term = at::full({2, 2}, static_cast<double>(rank + 1), at::kDouble);
    const at::Tensor sum = sum_over_ranks(group, term, "sum of three");
    EXPECT_TRUE(at::equal(sum, at::full({2, 2}, 6.0, at::kDouble)));
    EXPECT_TRUE(sum.is_same(term));
  });
}

}  // namespace
}  // namespace narrowcast::training

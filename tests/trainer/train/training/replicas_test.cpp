#include "trainer/train/training/replicas.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/checkpoint_writer.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::training {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::IsEmpty;
using testing::run_ranks;

// The answer, which must be the same on all ranks.
bool answer(int64_t world_size, const std::function<std::vector<at::Tensor>(int64_t rank)>& tensors) {
  std::vector<int> answers(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    answers[rank] = equal_on_all_ranks(group, tensors(rank)) ? 1 : 0;
  });
  for (const int each : answers) {
    EXPECT_EQ(each, answers[0]);
  }
  return answers[0] == 1;
}

class EqualOnAllRanksTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(EqualOnAllRanksTest, EqualTensorsAreEqual) {
  EXPECT_TRUE(answer(GetParam(), [](int64_t) -> std::vector<at::Tensor> {
    return {at::arange(100.0), at::zeros({0})};
  }));
}

TEST_P(EqualOnAllRanksTest, OneBitOfTheLastRankCounts) {
  const int64_t world_size = GetParam();
  const bool equal = answer(world_size, [&](int64_t rank) -> std::vector<at::Tensor> {
    // +0 and -0 compare equal, but their bits differ.
    return {at::full({3}, 1.0), at::full({1}, rank + 1 == world_size ? -0.0 : 0.0)};
  });
  EXPECT_EQ(equal, world_size == 1);
}

INSTANTIATE_TEST_SUITE_P(Worlds, EqualOnAllRanksTest, ::testing::Values(1, 2, 3, 4));

TEST(EqualOnAllRanks, OrderOfTheTensorsCounts) {
  EXPECT_FALSE(answer(2, [](int64_t rank) -> std::vector<at::Tensor> {
    const at::Tensor ones = at::full({2}, 1.0);
    const at::Tensor twos = at::full({2}, 2.0);
    return rank == 0 ? std::vector<at::Tensor>{ones, twos} : std::vector<at::Tensor>{twos, ones};
  }));
}

TEST(EqualOnAllRanks, ReadsStridedTensorsByTheirValues) {
  EXPECT_TRUE(answer(2, [](int64_t rank) -> std::vector<at::Tensor> {
    const at::Tensor values = at::arange(6.0).view({2, 3});
    return {rank == 0 ? values.t() : values.t().contiguous()};
  }));
}

// The errors of check_replicas on each of `world_size` ranks, whose state is `replica(rank)`.
std::vector<std::string> said_of(int64_t world_size,
                                 const std::function<checkpoint::TensorMap(int64_t rank)>& replica) {
  std::vector<std::string> said(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    try {
      check_replicas(group, replica(rank), 7);
    } catch (const ReplicasDifferError& error) {
      said[rank] = error.what_without_backtrace();
    }
  });
  return said;
}

checkpoint::TensorMap weights(double bias) {
  return {{"model.weight", at::arange(6.0).view({2, 3})}, {"model.bias", at::full({2}, bias)}};
}

TEST(CheckReplicas, TakesAllThatHaveTheSameBits) {
  EXPECT_THAT(said_of(3, [](int64_t) { return weights(std::nan("")); }), Each(IsEmpty()));
  EXPECT_THAT(said_of(2, [](int64_t) { return checkpoint::TensorMap{}; }), Each(IsEmpty()));
}

TEST(CheckReplicas, NamesTheRanksThatAreNotAsMost) {
  EXPECT_THAT(said_of(4, [](int64_t rank) { return weights(rank == 2 ? -0.0 : 0.0); }),
              Each("replicas differ after step 7: rank 2 from ranks 0, 1, 3, in 'model.bias', the first of 1 of 2 "
                   "tensors"));
  EXPECT_THAT(said_of(5, [](int64_t rank) { return weights(rank % 4 == 0 ? static_cast<double>(rank) : 9); }),
              Each("replicas differ after step 7: ranks 0, 4 from ranks 1, 2, 3, in 'model.bias', the first of 1 of 2 "
                   "tensors"));
}

TEST(CheckReplicas, BlamesNobodyWhereMostDoNotAgree) {
  EXPECT_THAT(said_of(2, [](int64_t rank) { return weights(static_cast<double>(rank)); }),
              Each("replicas differ after step 7: rank 0 from rank 1, without a majority that shows which is wrong, in "
                   "'model.bias', the first of 1 of 2 tensors"));
  EXPECT_THAT(
      said_of(4, [](int64_t rank) { return weights(rank == 3 ? 1 : static_cast<double>(rank / 2)); }),
      Each("replicas differ after step 7: ranks 0, 1 from ranks 2, 3, without a majority that shows which is wrong, in "
           "'model.bias', the first of 1 of 2 tensors"));
}

// The error of check_shards, which all ranks throw. Tensors are parts of one that counts from 0.
std::string error_of_shards(const std::vector<std::vector<pieces::Range>>& ranges,
                            const std::function<void(int64_t rank, std::vector<pieces::Piece>& held)>& change) {
  std::vector<std::string> errors(ranges.size());
  run_ranks(std::ssize(ranges), [&](int64_t rank, const ProcessGroupPtr& group) {
    pieces::HeldPieces held = {.numels = {{"first", 4}, {"second", 100}}};
    for (const pieces::Range& range : ranges[rank]) {
      held.pieces.push_back(
          {.range = range, .step = 7, .tensors = {{"moment", at::arange(range.begin, range.end, at::kFloat)}}});
    }
    change(rank, held.pieces);
    errors[rank] = error_message<ReplicasDifferError>([&] { check_shards(group, held, 20); });
  });
  EXPECT_THAT(errors, Each(errors[0]));
  return errors[0];
}

// Nodes of three ranks and of one, which share the optimizer within nodes. Each piece of rank 3 is on several others.
const std::vector<std::vector<pieces::Range>> kThreeAndOne = {{{"first", 0, 4}, {"second", 0, 30}},
                                                              {{"second", 30, 64}},
                                                              {{"second", 64, 100}},
                                                              {{"first", 0, 4}, {"second", 0, 100}}};

TEST(CheckShards, FindsACopyThatDiffersAlsoIfPiecesOverlap) {
  EXPECT_EQ(error_of_shards(kThreeAndOne, [](int64_t, auto&) {}), "nothing was thrown");
  for (const int64_t element : {0, 29, 30, 63, 64, 99}) {
    const std::string range = element < 30 ? "[0, 30)" : element < 64 ? "[30, 64)" : "[64, 100)";
    const std::string other = element < 30 ? "0" : element < 64 ? "1" : "2";
    const auto flip = [&](int64_t rank, std::vector<pieces::Piece>& held) {
      if (rank == 3) held[1].tensors["moment"].view(at::kInt)[element].bitwise_xor_(1);
    };
    EXPECT_THAT(error_of_shards(kThreeAndOne, flip),
                ::testing::StartsWith("copies of the optimizer's shards differ after step 20: on ranks " + other +
                                      ", 3, in 'second" + range + ".moment', the first of 1 tensors"));
  }
  EXPECT_THAT(error_of_shards(kThreeAndOne, [](int64_t rank, auto& held) { held[0].step = rank == 1 ? 6 : 7; }),
              ::testing::HasSubstr("on ranks 1, 3, in 'second[30, 64).step', the first of 1 tensors"));
}

TEST(CheckShards, FindsWhatOneRankHoldsAlone) {
  const auto lose = [](int64_t rank, std::vector<pieces::Piece>& held) {
    if (rank == 0) held.pop_back();
  };
  EXPECT_THAT(error_of_shards(kThreeAndOne, lose),
              ::testing::StartsWith("copies of the optimizer's shards are missing after step 20: on rank 3, in "
                                    "'second[0, 30).moment', the first of 2 tensors"));
  const auto lose_tensor = [](int64_t rank, std::vector<pieces::Piece>& held) {
    if (rank == 2) held[0].tensors.clear();
  };
  EXPECT_THAT(error_of_shards(kThreeAndOne, lose_tensor),
              ::testing::HasSubstr("on rank 3, in 'second[64, 100).moment', the first of 1 tensors"));
}

// Flips the last bit of a parameter's first element when a step is reported, like a bad memory cell.
struct BitFlip : reporting::TrainingObserver {
  BitFlip(std::shared_ptr<models::Model> of, int64_t at) : model(std::move(of)), step(at) {}
  void on_step(const reporting::StepReport& report) override {
    if (report.step != step) return;
    const at::NoGradGuard no_grad;
    model->parameters()[1].view(at::kInt).flatten()[0].bitwise_xor_(1);
  }
  void on_evaluation(const reporting::EvaluationReport& /*report*/) override {}
  std::shared_ptr<models::Model> model;
  int64_t step;
};

// The errors and the checkpoints of a training in which one rank is corrupted after step 4.
struct CorruptedTraining {
  std::vector<std::string> errors;
  std::vector<int64_t> checkpoints;
};

CorruptedTraining train_corrupted(const TrainingOptions& options, const std::string& hook, int64_t checkpoint_every) {
  constexpr int64_t kRanks = 3;
  const auto models = testing::small_models(kRanks);
  const data::TextDataset dataset = testing::small_text();
  const testing::TemporaryFolder folder;
  CorruptedTraining outcome;
  outcome.errors.resize(kRanks);
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    checkpoint::CheckpointWriter writer(group, {.folder = folder.path().string()}, {});
    BitFlip flip(models[rank], rank == 1 ? 4 : -1);
    try {
      train({.model = models[rank],
             .dataset = dataset,
             .group = group,
             .ddp = DdpOptions().hook(hook),
             .observer = &flip,
             .checkpoints = {.writer = checkpoint_every > 0 ? &writer : nullptr, .every = checkpoint_every}},
            options);
    } catch (const ReplicasDifferError& error) {
      outcome.errors[rank] = error.what_without_backtrace();
    }
  });
  outcome.checkpoints = checkpoint::checkpoint_steps(folder.path().string());
  return outcome;
}

class CorruptedReplicaTest : public ::testing::TestWithParam<std::string> {};

// From the fourth step on its gradients belong to another model, but the means are the same on all ranks. So the rank
// keeps its wrong parameter, and the other ranks keep theirs.
TEST_P(CorruptedReplicaTest, IsFoundAtTheNextCheck) {
  TrainingOptions options = testing::small_training();
  options.check_replicas_every = 5;
  const std::vector<std::string> errors = train_corrupted(options, GetParam(), 0).errors;
  EXPECT_THAT(errors, Each(::testing::StartsWith("replicas differ after step 5: rank 1 from ranks 0, 2, in 'model.")));
}

TEST_P(CorruptedReplicaTest, IsNotSaved) {
  TrainingOptions options = testing::small_training();
  options.check_replicas_every = 0;
  const CorruptedTraining outcome = train_corrupted(options, GetParam(), 2);
  EXPECT_THAT(outcome.errors, Each(::testing::StartsWith("replicas differ after step 4: rank 1 from ranks 0, 2")));
  EXPECT_THAT(outcome.checkpoints, ElementsAre(2));
}

INSTANTIATE_TEST_SUITE_P(Hooks, CorruptedReplicaTest, ::testing::Values("none", "int8"));

TEST(CorruptedReplica, IsNotLookedForWithoutAsking) {
  TrainingOptions options = testing::small_training();
  options.check_replicas_every = 0;
  EXPECT_THAT(train_corrupted(options, "none", 0).errors, Each(IsEmpty()));
}

TEST(CorruptedReplica, IsOneOfManyWithAHookThatLetsReplicasDiffer) {
  TrainingOptions options = testing::small_training();
  options.check_replicas_every = 1;
  EXPECT_THAT(train_corrupted(options, "noop", 2).errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace narrowcast::training

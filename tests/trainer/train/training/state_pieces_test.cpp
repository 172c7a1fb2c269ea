// Recovery in place of trainings whose optimizer is sharded over all ranks, with a second copy of each shard.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/interrupted_runs.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/watched_group.h"
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/training/recovery.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

// Nodes by their size; the last one may have fewer ranks. Some ranks are lost in step 4.
struct LossOfCopies {
  int64_t world_size;
  int64_t node_size;
  std::vector<int64_t> lost;
  int64_t world_size_after;
  std::optional<WireFormat> format = std::nullopt;
  bool is_in_backward = true;  // Else before the forward pass, while parameters of step 3 may be exchanged.
  Precision precision = Precision::kFp32;
};

void PrintTo(const LossOfCopies& loss, std::ostream* out) {
  *out << loss.world_size << " in nodes of " << loss.node_size << ", then " << loss.world_size_after << " without "
       << ::testing::PrintToString(loss.lost);
}

ResumeCase case_of(const LossOfCopies& loss, OptimizerKind kind) {
  ResumeCase value{
      "copies",
      resuming::small_buckets().hook("int8").wire({.node_size = loss.node_size, .link_gbit = 1, .link_us = 100}),
      kind,
      1,
      16,
      loss.precision};
  value.shards = OptimizerShards::kAll;
  value.parameter_format = loss.format;
  return value;
}

TrainingOptions options_with_copies(const ResumeCase& value) {
  TrainingOptions options = resuming::options_of(value);
  options.batch_size = 60;  // For worlds of 2 to 5 ranks.
  options.shard_copies = 2;
  return options;
}

using States = std::vector<std::optional<SurvivingState>>;

TrainingResult train_with(const TrainingOptions& options, const ResumeCase& value, const Models& models, int64_t rank,
                          const ProcessGroupPtr& group, const Checkpoints& checkpoints) {
  const data::TextDataset dataset = testing::small_text();
  return train({.model = models[rank],
                .dataset = dataset,
                .group = group,
                .ddp = value.ddp,
                .shards = options.optimizer_shards,
                .checkpoints = checkpoints},
               options);
}

void train_with_copies(const ResumeCase& value, const Models& models, int64_t rank, const ProcessGroupPtr& group,
                       States& states, checkpoint::Restored* restored = nullptr) {
  train_with(options_with_copies(value), value, models, rank, group,
             {.restored = restored, .surviving = &states[rank]});
}

// Returns why the state was not found in the ranks' memory; empty if it was. `change` gets the states that are left.
std::string train_through_loss(
    const LossOfCopies& loss, const ResumeCase& value, Models& models,
    const std::function<void(States&)>& change = [](States&) {}) {
  States states(models.size());
  run_ranks(loss.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_THROW(train_with_copies(value, models, rank, group, states), c10::DistBackendError);
  });
  for (const int64_t rank : loss.lost) {
    states[rank].reset();
    models[rank] = new_models(loss.world_size, value, {})[rank];
  }
  change(states);
  std::vector<std::string> whys(loss.world_size_after);
  run_ranks(loss.world_size_after, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::optional<RecoveredState> recovered = share_states(group, states[rank], &whys[rank]);
    EXPECT_EQ(recovered.has_value(), whys[rank].empty());
    if (!recovered) return;
    EXPECT_EQ(recovered->restored.step, 3);
    train_with_copies(value, models, rank, group, states, &recovered->restored);
  });
  return whys[0];
}

// Compares the models with those of a training that has lost nothing, if it has as many ranks.
void expect_undisturbed(const LossOfCopies& loss, const ResumeCase& value, const Models& models) {
  const Models undisturbed = new_models(loss.world_size, value, {});
  States states(models.size());
  run_ranks(loss.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    train_with_copies(value, undisturbed, rank, group, states);
  });
  for (int64_t rank = 0; rank < loss.world_size_after; ++rank) {
    EXPECT_TRUE(resuming::equal_bits(*models[rank], *models[0])) << "rank " << rank;
    if (loss.world_size_after == loss.world_size) {
      EXPECT_TRUE(resuming::equal_bits(*models[rank], *undisturbed[rank])) << "rank " << rank;
    }
  }
}

class CopiesRecovery : public ::testing::TestWithParam<LossOfCopies> {};

TEST_P(CopiesRecovery, TheShardsComeFromTheirCopies) {
  const LossOfCopies& loss = GetParam();
  const ResumeCase value =
      case_of(loss, loss.format == WireFormat::kFp32 ? OptimizerKind::kSgd : OptimizerKind::kAdamW);
  Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = loss.is_in_backward});
  ASSERT_EQ(train_through_loss(loss, value, models), "");
  expect_undisturbed(loss, value, models);
}

INSTANTIATE_TEST_SUITE_P(Nodes, CopiesRecovery,
                         ::testing::Values(LossOfCopies{2, 1, {1}, 2}, LossOfCopies{2, 1, {0}, 2, WireFormat::kFp32},
                                           LossOfCopies{3, 1, {1}, 3}, LossOfCopies{3, 1, {2}, 3, {}, false},
                                           LossOfCopies{4, 1, {0, 2}, 4, WireFormat::kInt4B32},
                                           LossOfCopies{4, 2, {2, 3}, 4},
                                           LossOfCopies{4, 2, {1}, 4, WireFormat::kFp32, false},
                                           LossOfCopies{4, 3, {0, 1, 2}, 4}, LossOfCopies{4, 3, {3}, 4},
                                           LossOfCopies{5, 2, {4}, 5}, LossOfCopies{5, 1, {3}, 5},
                                           LossOfCopies{4, 2, {}, 3}, LossOfCopies{6, 2, {}, 4},
                                           LossOfCopies{3, 1, {1}, 3, {}, true, Precision::kFp16}));

// Rank 0 of nodes of 3 + 1 is lost while parameters are exchanged. Ranks 1 and 2 have no shard, and parameters that
// are wrong. Rank 3 has all of both.
TEST(LostCopies, ParametersComeFromAHolderAlsoIfTheFirstSourceHoldsNone) {
  const LossOfCopies loss{4, 3, {0}, 4, {}, false};
  const ResumeCase value = case_of(loss, OptimizerKind::kAdamW);
  Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = false});
  const auto spoil = [](States& states) {
    for (const int64_t rank : {1, 2}) {
      SurvivingState& state = states[rank].value();
      for (auto& [name, tensor] : state.content.replica) {
        if (name.starts_with("model.")) tensor.zero_();
      }
      std::erase_if(state.optimizer.value().pieces, [](const auto& piece) { return is_of_values(piece.range); });
      EXPECT_TRUE(state.optimizer->pieces.empty());
    }
  };
  ASSERT_EQ(train_through_loss(loss, value, models, spoil), "");
  expect_undisturbed(loss, value, models);
}

TEST(LostCopies, WithoutOwnerAndCopyAShardIsLost) {
  const LossOfCopies loss{4, 1, {1, 2}, 4};
  const ResumeCase value = case_of(loss, OptimizerKind::kAdamW);
  Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = true});
  EXPECT_THAT(train_through_loss(loss, value, models),
              HasSubstr("no rank that is left holds the optimizer's state of "));
}

// The state of the optimizer by parameter and tensor, put together from the pieces of all ranks.
std::map<std::string, at::Tensor> whole_optimizer(const States& states) {
  std::map<std::string, at::Tensor> whole;
  for (const std::optional<SurvivingState>& state : states) {
    for (const pieces::Piece& piece : state ? state->optimizer.value().pieces : std::vector<pieces::Piece>()) {
      for (const auto& [name, tensor] : piece.tensors) {
        at::Tensor& all = whole[piece.range.name + "." + name];
        if (!all.defined()) all = at::zeros({state->optimizer->numels.at(piece.range.name)});
        all.narrow(0, piece.range.begin, piece.range.numel()).copy_(tensor);
      }
    }
  }
  return whole;
}

constexpr auto kName = [](const auto& entry) { return entry.first; };

// Node and world sizes as before. All but the first node are lost in step 4. Later a node joins.
class LastNode : public ::testing::TestWithParam<LossOfCopies> {
 protected:
  // Trains on the first node until newcomers ask. It has no shards if it has one rank.
  void train_on_last_node(const ResumeCase& value, const Models& models, States& states) const {
    run_ranks(GetParam().world_size_after, [&](int64_t rank, const ProcessGroupPtr& group) {
      std::optional<RecoveredState> recovered = share_states(group, states[rank]);
      ASSERT_TRUE(recovered.has_value());
      EXPECT_EQ(recovered->restored.step, 3);
      TrainingOptions options = options_with_copies(value);
      options.steps = 20;
      options.shard_copies = 1;
      if (group->getSize() == 1) {
        options.optimizer_shards = OptimizerShards::kOff;
        options.parameter_format.reset();
      }
      const TrainingResult result =
          train_with(options, value, models, rank, group,
                     {.restored = &recovered->restored, .surviving = &states[rank], .asked_to_stop = [] {
                        return recovery::kNewcomers;
                      }});
      EXPECT_TRUE(result.takes_in_newcomers);
    });
  }
};

TEST_P(LastNode, GoesOnWithOneCopyUntilAnotherNodeJoins) {
  const LossOfCopies& loss = GetParam();
  const ResumeCase value = case_of(loss, OptimizerKind::kAdamW);
  Models models = new_models(loss.world_size, value, {.pass = 4, .is_in_backward = loss.is_in_backward});
  States states(models.size());
  run_ranks(loss.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    EXPECT_THROW(train_with_copies(value, models, rank, group, states), c10::DistBackendError);
  });
  for (int64_t rank = loss.world_size_after; rank < loss.world_size; ++rank) {
    states[rank].reset();
    models[rank] = new_models(loss.world_size, value, {})[rank];
  }
  const States with_copies = states;
  train_on_last_node(value, models, states);
  const int64_t step = states[0].value().content.step;
  EXPECT_GT(step, 3);
  const checkpoint::TensorMap stopped = states[0]->content.replica;
  const bool is_alone = loss.world_size_after == 1;
  const auto before = is_alone ? std::map<std::string, at::Tensor>() : whole_optimizer(states);
  const auto former = whole_optimizer(with_copies);
  // No step follows, but a check of the copies.
  run_ranks(loss.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::optional<RecoveredState> recovered = share_states(group, states[rank]);
    ASSERT_TRUE(recovered.has_value());
    EXPECT_EQ(recovered->restored.step, step);
    TrainingOptions options = options_with_copies(value);
    options.steps = step;
    options.check_replicas_every = 1;
    train_with(options, value, models, rank, group,
               {.restored = &recovered->restored, .is_reported = false, .surviving = &states[rank]});
  });
  const auto after = whole_optimizer(states);
  EXPECT_FALSE(after.empty());
  EXPECT_TRUE(std::ranges::equal(after, former, {}, kName, kName));
  for (const auto& [name, tensor] : after) {
    const std::string parameter = "model." + name.substr(0, name.rfind('.'));
    const std::string last = name.substr(name.rfind('.'));
    const at::Tensor& expected = last == ".value"                ? stopped.at(parameter.substr(0, parameter.size() - 1))
                                 : is_alone && last == ".master" ? stopped.at(parameter)
                                 : is_alone                      ? stopped.at("optimizer." + name)
                                                                 : before.at(name);
    EXPECT_TRUE(at::equal(tensor, expected.flatten())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, LastNode,
                         ::testing::Values(LossOfCopies{4, 2, {}, 2},
                                           LossOfCopies{4, 2, {}, 2, WireFormat::kFp32, false},
                                           LossOfCopies{4, 3, {}, 3}, LossOfCopies{2, 1, {}, 1}));

// Ranks 2 and 3 join two ranks with one copy of their shards, and are lost before rank 1 has sent all of its part. Then
// rank 0 has its new pieces already.
TEST(JoiningNode, IsLostWithoutTheStateOfTheOthers) {
  const ResumeCase value = case_of({4, 2, {}, 2}, OptimizerKind::kAdamW);
  States states(2);
  const Models first = new_models(2, value, {});
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    TrainingOptions options = options_with_copies(value);
    options.steps = 20;
    options.shard_copies = 1;
    train_with(options, value, first, rank, group,
               {.surviving = &states[rank], .asked_to_stop = [] { return recovery::kNewcomers; }});
  });
  const int64_t step = states[0].value().content.step;
  // Returns how many messages rank 1 sends, or fails before one of them.
  const auto join = [&](States& left, std::optional<int64_t> fails_at) {
    left.resize(4);
    const Models models = new_models(4, value, {});
    int64_t sent = 0;
    run_ranks(4, [&](int64_t rank, const ProcessGroupPtr& group) {
      std::optional<RecoveredState> recovered = share_states(group, left[rank]);
      ASSERT_TRUE(recovered.has_value());
      TrainingOptions options = options_with_copies(value);
      options.steps = step;
      const auto before_send = [&](int64_t /*peer*/, int64_t /*bytes*/) {
        TORCH_CHECK_WITH(DistBackendError, sent != fails_at, "rank 1: rank 3 is lost");
        ++sent;
      };
      train_with(options, value, models, rank, rank == 1 ? testing::watched(group, before_send) : group,
                 {.restored = &recovered->restored, .surviving = &left[rank]});
    });
    return sent;
  };
  States undisturbed = states;
  const int64_t messages = join(undisturbed, std::nullopt);
  EXPECT_THROW(join(states, messages - 1), c10::DistBackendError);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::string why;
    const std::optional<RecoveredState> recovered = share_states(group, states[rank], &why);
    ASSERT_TRUE(recovered.has_value()) << why;
    EXPECT_EQ(recovered->restored.step, step);
  });
}

// Rank 2 is lost when rank 0 has done the reports of a step, and rank 1 has failed in them. Together they have all.
TEST(StopForNewcomers, ARankOffersItsStateAlsoFromBeforeTheReports) {
  const ResumeCase value = case_of({3, 1, {}, 3}, OptimizerKind::kAdamW);
  const Models models = new_models(3, value, {});
  States states(3);
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    TrainingOptions options = options_with_copies(value);
    options.steps = 20;
    options.log_every = 1;
    options.eval_every = 1;
    options.eval_batches = 1;
    options.early_stop = 10;
    train_with(options, value, models, rank, group,
               {.surviving = &states[rank], .asked_to_stop = [] { return recovery::kNewcomers; }});
  });
  ASSERT_EQ(states[1].value().earlier.size(), 1U);
  const auto counter = [](const SurvivingState& state, const std::string& name) {
    return state.content.replica.at("counters." + name).item<double>();
  };
  EXPECT_EQ(counter(*states[1], "window_steps"), 0);
  EXPECT_EQ(counter(states[1]->earlier[0], "window_steps"), 1) << "not reported";
  EXPECT_EQ(counter(*states[1], "best_validation_loss"), counter(*states[1], "validation_loss"));
  EXPECT_NE(counter(*states[1], "validation_loss"), counter(states[1]->earlier[0], "validation_loss"))
      << "not evaluated";
  states[1] = SurvivingState(states[1]->earlier[0]);
  states[2].reset();
  const int64_t step = states[0]->content.step;
  run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
    const std::optional<RecoveredState> recovered = share_states(group, states[rank]);
    ASSERT_TRUE(recovered.has_value());
    EXPECT_EQ(recovered->restored.step, step);
    EXPECT_FALSE(recovered->is_reported);
  });
}

}  // namespace
}  // namespace narrowcast::training

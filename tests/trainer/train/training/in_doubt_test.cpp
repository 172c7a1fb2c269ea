// Trainings with second copies of shards that lose a rank while ranks agree on a step, or exchange its parameters.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/training/interrupted_runs.h"
#include "tests/trainer/train/training/resume_runs.h"
#include "tests/trainer/train/training/watched_group.h"
#include "trainer/train/training/recovery.h"
#include "trainer/train/training/training_state.h"

namespace narrowcast::training {
namespace {

using testing::run_ranks;

constexpr int64_t kRanks = 3;  // Each is a node: rank 0 holds the copy of rank 2's shard, rank 1 that of rank 0's.
constexpr int64_t kLost = 2;
constexpr int64_t kWidth = 256;  // So that all ranks have shards, which begin at multiples of 1024 elements.
constexpr int64_t kBatch = 30;

// Predicts the next token. The loss of one batch is infinite.
class NormedText final : public models::Model {
 public:
  explicit NormedText(int64_t tokens)
      : embedding_(register_module("embedding", torch::nn::Embedding(tokens, kWidth))),
        norm_(register_module("norm", torch::nn::BatchNorm1d(kWidth))),
        linear_(register_module("linear", torch::nn::Linear(kWidth, tokens))),
        nothing_(register_parameter("nothing_weight", at::zeros({0, 3}))) {}

  at::Tensor forward(const models::Batch& batch) override {
    if (is_training()) ++passes;
    announce(*embedding_);
    const at::Tensor embedded = embedding_(batch.inputs).flatten(0, 1);
    announce(*norm_);
    const at::Tensor normed = norm_(embedded);
    announce(*linear_);
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(linear_(normed), batch.targets.flatten()) + nothing_.sum();
    const bool is_infinite = infinite_inputs.defined() && at::equal(batch.inputs, infinite_inputs);
    return is_infinite ? loss * std::numeric_limits<float>::infinity() : loss;
  }
  bool announces_layers() const override { return true; }
  models::ModelOptions options() const override { return {}; }

  std::atomic<int64_t> passes = 0;
  at::Tensor infinite_inputs;

 private:
  torch::nn::Embedding embedding_;
  torch::nn::BatchNorm1d norm_;
  torch::nn::Linear linear_;
  at::Tensor nothing_;  // A parameter without elements.
};

// The message before which the rank is lost.
enum class Before {
  kShare,            // Its averages have not reached the holder of its copy.
  kMeeting,          // No rank knows that all have their averages.
  kSecondOfMeeting,  // Rank 0 knows it and takes the step, rank 1 does not know it.
  kParameters,       // All have taken the step. No rank gets this rank's parameters.
  kSecondParameters  // At most rank 0 gets them.
};

struct Doubt {
  std::string name;
  Before before = Before::kMeeting;
  int64_t step = 4;  // In which the rank is lost.
  int64_t goes_on_after = 4;
  std::optional<int64_t> skipped = std::nullopt;  // A step whose gradients are infinite.
  Precision precision = Precision::kFp32;
  std::optional<WireFormat> format = std::nullopt;
};

void PrintTo(const Doubt& value, std::ostream* out) { *out << value.name; }

// Follows the messages of a rank from one step on: two all-gathers for the norm, the averages for the copy, an
// all-gather in which ranks meet, then parameters and more. Gradients come first, and perhaps parameters of the step
// before.
class StepWatch {
 public:
  enum class Part { kNorm, kShare, kMeeting, kParameters };

  // The part to which a message belongs.
  Part part_of(int64_t peer, int64_t bytes) {
    constexpr int64_t kHeader = 16;
    Sent& sent = sent_[peer];
    if (bytes == kHeader + 8 && sent.norms == 0) {
      ++sent.norms;
    } else if (bytes == kHeader + 16 && sent.norms == 1) {
      ++sent.norms;
    } else if (bytes == kHeader + 8 && !sent.has_met) {
      sent.has_met = true;
      return Part::kMeeting;
    } else if (sent.norms == 2) {
      return sent.has_met ? Part::kParameters : Part::kShare;
    }
    return Part::kNorm;
  }

 private:
  struct Sent {
    int64_t norms = 0;
    bool has_met = false;
  };
  std::map<int64_t, Sent> sent_;  // By peer.
};

// A moment that another rank waits for.
class Moment {
 public:
  void is_here() {
    if (!was_here_.exchange(true)) promise_.set_value();
  }
  void wait() {
    TORCH_CHECK(future_.wait_for(testing::kPatience) == std::future_status::ready, "a rank does not come that far");
  }

 private:
  std::atomic<bool> was_here_ = false;
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

class InDoubt : public ::testing::TestWithParam<Doubt> {
 protected:
  using States = std::vector<std::optional<SurvivingState>>;

  struct Run {
    Models models;
    std::vector<std::shared_ptr<NormedText>> normed;
    States states = States(kRanks);
  };

  TrainingOptions options() const {
    TrainingOptions options;
    options.steps = 6;
    options.batch_size = kBatch;
    options.precision = GetParam().precision;
    options.optimizer_shards = OptimizerShards::kAll;
    options.parameter_format = GetParam().format;
    options.shard_copies = 2;
    options.log_every = 100;  // Reports exchange messages as well.
    options.eval_batches = 1;
    options.optimizer.kind = GetParam().format == WireFormat::kFp32 ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
    options.optimizer.momentum = GetParam().format == WireFormat::kFp32 ? 0.9 : 0;
    return options;
  }

  // Rank 0's batch of that step.
  at::Tensor inputs_of(int64_t step) const {
    const data::BatchPlan plan({.global_batch = kBatch, .world_size = kRanks, .accumulation_steps = 1});
    const data::SampleOrder order(dataset_.training_size(), options().seed);
    return dataset_.training_batch(plan.samples(order, /*rank=*/0, step - 1, /*micro_step=*/0)).inputs;
  }

  void add_model(Run& run, const FailingModel::Failure& failure) const {
    at::manual_seed(1);
    run.normed.push_back(std::make_shared<NormedText>(dataset_.corpus().vocabulary().size()));
    if (GetParam().skipped) run.normed.back()->infinite_inputs = inputs_of(*GetParam().skipped);
    run.models.push_back(std::make_shared<FailingModel>(run.normed.back(), failure));
  }
  Run new_run(const FailingModel::Failure& failure = {}) const {
    Run run;
    for (int64_t rank = 0; rank < kRanks; ++rank) add_model(run, failure);
    return run;
  }

  void train_rank(Run& run, int64_t rank, const ProcessGroupPtr& group,
                  checkpoint::Restored* restored = nullptr) const {
    TrainingOptions own = options();
    own.check_replicas_every = restored != nullptr ? 1 : 0;  // A check waits for all parameters.
    const auto ddp = resuming::small_buckets().hook("int8").wire({.node_size = 1, .link_gbit = 1, .link_us = 100});
    train({.model = run.models[rank],
           .dataset = dataset_,
           .group = group,
           .ddp = ddp,
           .shards = OptimizerShards::kAll,
           .checkpoints = {.restored = restored, .surviving = &run.states[rank]}},
          own);
  }

  // Loses the rank once the others have come as far as they can.
  void lose_rank(Run& run) const {
    std::vector<Moment> meet(kRanks);
    std::vector<Moment> have_met(kRanks);
    const auto lose_before = [&](StepWatch::Part part, int64_t peer) {
      const Before before = GetParam().before;
      const bool is_second = before == Before::kSecondOfMeeting || before == Before::kSecondParameters;
      const StepWatch::Part last = before == Before::kShare             ? StepWatch::Part::kShare
                                   : before == Before::kMeeting         ? StepWatch::Part::kMeeting
                                   : before == Before::kSecondOfMeeting ? StepWatch::Part::kMeeting
                                                                        : StepWatch::Part::kParameters;
      if (part != last || (is_second && peer == 0)) return;
      meet[1].wait();
      if (last != StepWatch::Part::kShare) meet[0].wait();
      if (last == StepWatch::Part::kParameters || is_second) have_met[0].wait();
      if (last == StepWatch::Part::kParameters) have_met[1].wait();
      TORCH_CHECK_WITH(DistBackendError, false, "rank ", kLost, " is lost");
    };
    const auto ranks = [&](int64_t rank, const ProcessGroupPtr& group) {
      StepWatch watch;
      const auto before_send = [&](int64_t peer, int64_t bytes) {
        if (run.normed[rank]->passes < GetParam().step) return;
        const StepWatch::Part part = watch.part_of(peer, bytes);
        if (rank == kLost) {
          lose_before(part, peer);
        } else if (part == StepWatch::Part::kMeeting) {
          meet[rank].is_here();
        } else if (part == StepWatch::Part::kParameters) {
          have_met[rank].is_here();
        }
      };
      train_rank(run, rank, testing::watched(group, before_send));
    };
    EXPECT_THROW(run_ranks(kRanks, ranks), c10::DistBackendError);
    run.states[kLost].reset();
  }

  // The states after that step, of ranks that all fail at once between two steps.
  States states_after(int64_t step) const {
    Run run = new_run({.pass = step + 1});
    run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
      EXPECT_THROW(train_rank(run, rank, group), c10::DistBackendError);
    });
    return run.states;
  }

  const data::TextDataset dataset_ = testing::small_text();
};

// The steps after which the ranks that are left can go on.
std::vector<std::vector<int64_t>> expected_steps(Before before) {
  switch (before) {
    case Before::kShare:
      return {{3}, {3, 4}};
    case Before::kMeeting:
      return {{3, 4}, {3, 4}};
    case Before::kSecondOfMeeting:
      return {{4}, {3, 4}};
    default:
      return {{3}, {3}};
  }
}

// Elements of parameters that the state does not have.
int64_t lacking(const SurvivingState& state) {
  int64_t lacking = 0;
  for (const auto& [name, numel] : state.optimizer.value().numels) {
    lacking += is_of_values({.name = name}) ? numel : 0;
  }
  for (const pieces::Piece& piece : state.optimizer->pieces) {
    lacking -= is_of_values(piece.range) ? piece.range.numel() : 0;
  }
  return lacking;
}

// Exchanges of parameters that failed do not count as sent. Times differ.
bool must_be_equal(const std::string& name) {
  return name != "counters.parameter_bytes" && name != "counters.seconds" && name != "counters.window_seconds";
}

// All but the parameters, of which a rank may have some wrongly: the pieces have them.
void expect_equal_states(const SurvivingState& found, const SurvivingState& expected) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, tensor] : expected.content.replica) values[name] = tensor;
  for (const auto& [name, tensor] : expected.content.rank) values[name] = tensor;
  std::map<std::string, at::Tensor> states;
  for (const pieces::Piece& piece : expected.optimizer.value().pieces) {
    if (is_of_values(piece.range)) continue;
    for (const auto& [name, tensor] : piece.tensors) states[pieces::describe(piece.range) + name] = tensor;
    states[pieces::describe(piece.range)] = at::full({}, piece.step.value_or(0));
  }
  const auto expect_value = [&](const std::string& name, const at::Tensor& tensor) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_TRUE(!must_be_equal(name) || at::equal(tensor, values.at(name))) << name;
  };
  EXPECT_EQ(found.content.training, expected.content.training);
  for (const auto& [name, tensor] : found.content.rank) expect_value(name, tensor);
  for (const auto& [name, tensor] : found.content.replica) {
    if (!name.ends_with("weight") && !name.ends_with("bias")) expect_value(name, tensor);
  }
  for (const pieces::Piece& piece : found.optimizer.value().pieces) {
    const std::string& name = piece.range.name;
    for (const auto& [tensor_name, tensor] : piece.tensors) {
      const std::string range = pieces::describe(piece.range);
      const at::Tensor wanted = is_of_values(piece.range) ? values.at("model." + name.substr(0, name.size() - 1))
                                                                .flatten()
                                                                .narrow(0, piece.range.begin, piece.range.numel())
                                                          : states.at(range + tensor_name);
      EXPECT_TRUE(at::equal(tensor, wanted)) << range << tensor_name;
    }
    EXPECT_TRUE(is_of_values(piece.range) ||
                states.at(pieces::describe(piece.range)).item<int64_t>() == piece.step.value_or(0));
  }
}

TEST_P(InDoubt, TheRanksThatAreLeftGoOnAsIfNothingWasLost) {
  Run run = new_run();
  lose_rank(run);
  const std::vector<std::vector<int64_t>> steps = expected_steps(GetParam().before);
  for (const int64_t step : {3, 4}) {
    const States expected = states_after(step);
    for (int64_t rank = 0; rank < kLost; ++rank) {
      std::vector<SurvivingState> offered = run.states[rank].value().earlier;
      offered.push_back(*run.states[rank]);
      ASSERT_EQ(offered.size(), steps[rank].size()) << "rank " << rank;
      for (size_t i = 0; i < offered.size(); ++i) {
        EXPECT_EQ(offered[i].content.step, steps[rank][i]) << "rank " << rank;
        if (offered[i].content.step == step) expect_equal_states(offered[i], *expected[rank]);
      }
    }
  }
  EXPECT_EQ(lacking(*run.states[1]) > 0, GetParam().skipped != GetParam().step) << "parameters of the lost rank";
  Run replaced = new_run();
  run.models[kLost] = replaced.models[kLost];
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::optional<RecoveredState> recovered = share_states(group, run.states[rank]);
    ASSERT_TRUE(recovered.has_value());
    EXPECT_EQ(recovered->restored.step, GetParam().goes_on_after);
    train_rank(run, rank, group, &recovered->restored);
  });
  Run undisturbed = new_run();
  run_ranks(kRanks, [&](int64_t rank, const ProcessGroupPtr& group) { train_rank(undisturbed, rank, group); });
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(resuming::equal_bits(*run.models[rank], *undisturbed.models[rank])) << "rank " << rank;
  }
  const auto buffers = run.models[0]->named_buffers();
  for (const auto& buffer : undisturbed.models[0]->named_buffers()) {
    EXPECT_TRUE(at::equal(buffers[buffer.key()], buffer.value())) << buffer.key();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Moments, InDoubt,
    ::testing::Values(
        Doubt{"share", Before::kShare, 4, 3}, Doubt{"share_fp16", Before::kShare, 4, 3, 2, Precision::kFp16},
        Doubt{"meeting", Before::kMeeting}, Doubt{"meeting_skipped", Before::kMeeting, 4, 4, 4},
        Doubt{"meeting_skipped_fp16", Before::kMeeting, 4, 4, 4, Precision::kFp16},
        Doubt{"meeting_fp16", Before::kMeeting, 4, 4, 3, Precision::kFp16},
        Doubt{"half_of_meeting", Before::kSecondOfMeeting},
        Doubt{"half_of_meeting_fp32", Before::kSecondOfMeeting, 4, 4, {}, Precision::kFp32, WireFormat::kFp32},
        Doubt{"half_of_meeting_skipped_fp16", Before::kSecondOfMeeting, 4, 4, 4, Precision::kFp16},
        Doubt{"parameters", Before::kParameters, 3, 3},
        Doubt{"parameters_fp32", Before::kParameters, 3, 3, {}, Precision::kFp32, WireFormat::kFp32},
        Doubt{"half_of_parameters", Before::kSecondParameters, 3, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace narrowcast::training

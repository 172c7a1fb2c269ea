// Resuming equals continuing, bit for bit, in randomly drawn trainings. The name of each trial contains its seed, and
// the trial prints its training. To run one of the usual trials, or 5000 others:
//
//   narrowcast_ddp_tests --gtest_filter='*ResumeTrialsTest*/seed_17'
//   NARROWCAST_TRIALS=5000 NARROWCAST_FIRST_TRIAL=1000 narrowcast_ddp_tests --gtest_filter='*ResumeTrialsTest*'
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include <narrowcast/outer_optimizer.h>
#include "tests/support/ranks.h"
#include "tests/support/sanitized.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "tests/trainer/ddp/resume/drawn_training.h"

namespace narrowcast::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr uint64_t kSeedOfParameters = 1;
constexpr uint64_t kOtherParameters = 2;  // Seed of a training whose parameters are loaded later.

hooks::HookState copy_of(const hooks::HookState& state) {
  hooks::HookState copy;
  for (const auto& [name, tensor] : state) copy.emplace(name, tensor.clone());
  return copy;
}

hooks::FormerRanks copy_of(const hooks::FormerRanks& former) {
  hooks::FormerRanks copy{.world_size = former.world_size, .states = {}, .first = {}};
  for (const hooks::HookState& state : former.states) copy.states.push_back(copy_of(state));
  return copy;
}

void add_state(Tensors& tensors, const std::string& owner, const hooks::HookState& state) {
  for (const auto& [name, tensor] : state) tensors[owner + " " + name] = tensor.clone();
}

// The first tensor that is missing in one of them or differs in a bit; empty if all are equal.
std::string first_difference(const Tensors& continued, const Tensors& resumed) {
  for (const auto& [name, tensor] : continued) {
    const auto other = resumed.find(name);
    if (other == resumed.end()) {
      return name + " is missing";
    }
    if (other->second.scalar_type() != tensor.scalar_type() || other->second.sizes() != tensor.sizes() ||
        bytes_of({other->second}) != bytes_of({tensor})) {
      return name + " differs";
    }
  }
  for (const auto& [name, tensor] : resumed) {
    if (!continued.contains(name)) {
      return name + " is new";
    }
  }
  return "";
}

// The saved data of one rank between two steps.
struct Saved {
  int64_t step = 0;
  bool replicas_are_equal = true;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::string optimizer;
  ReducerState reducer;
  OuterState outer;
};

// One rank's training.
class Training {
 public:
  Training(const DrawnTraining& drawn, const ProcessGroupPtr& group)
      : Training(drawn, group, std::make_shared<DrawnNet>(drawn.net, kSeedOfParameters)) {}

  // Resumes from the saved data of the ranks. As docs/guide/checkpoints.md describes it, parameters are loaded first.
  // Replicas that differ are loaded after DistributedDataParallel has made them equal.
  Training(const DrawnTraining& drawn, const ProcessGroupPtr& group, const std::vector<Saved>& saved)
      : Training(drawn, group, loaded_net(drawn, group, saved)) {
    const Saved& own = saved.at(static_cast<size_t>(group->getRank()));
    if (!own.replicas_are_equal) {
      set(net_->parameters(), own.parameters);
    }
    if (!own.replicas_are_equal || !drawn.ddp.broadcast_buffers()) {
      set(net_->buffers(), own.buffers);
    }
    std::istringstream optimizer(own.optimizer);
    torch::load(sgd_, optimizer);
    ddp_.load_state(own.reducer);
    if (outer_) outer_->load_state(own.outer);
    step_ = own.step;
  }

  void take_step() {
    ++step_;
    if (drawn_.rescales && hash() % 3 == 0) ddp_.rescale_hook_state(step_ % 2 == 0 ? 2 : 0.5);
    if (drawn_.evaluates && hash() % 2 == 0) evaluate();
    ddp_.zero_grad();
    for (int64_t batch = 1; batch < drawn_.micro_batches; ++batch) {
      const auto guard = ddp_.no_sync();
      run_pass(batch);
    }
    run_pass(0);
    if (outer_) {
      outer_->step();
    } else {
      sgd_.step();
    }
  }

  // Takes more steps until the buckets are settled.
  void settle() {
    while (!ddp_.settle_buckets()) take_step();
  }

  Saved save() {
    std::ostringstream optimizer;
    torch::save(sgd_, optimizer);
    const ReducerState state = ddp_.state();
    Saved saved{.step = step_,
                .replicas_are_equal = ddp_.keeps_replicas_equal(),
                .parameters = clones(net_->parameters()),
                .buffers = clones(net_->buffers()),
                .optimizer = optimizer.str(),
                .reducer = {state.buckets, state.reductions, copy_of(state.hook)},
                .outer = {}};
    if (outer_) {
      const OuterState outer = outer_->state();
      saved.outer = {.replica = copy_of(outer.replica), .rank = copy_of(outer.rank)};
    }
    return saved;
  }

  // Adds the results of the last step.
  void record_step(Tensors& tensors) const {
    const std::string step = "step " + std::to_string(step_) + ": ";
    for (const auto& parameter : net_->named_parameters()) {
      tensors[step + parameter.key()] = parameter.value().detach().clone();
      if (parameter.value().grad().defined()) {
        tensors[step + "gradient of " + parameter.key()] = parameter.value().grad().clone();
      }
    }
    for (const auto& buffer : net_->named_buffers()) tensors[step + buffer.key()] = buffer.value().clone();
  }

  // Adds all state on which later steps depend, and counters.
  void record_state(Tensors& tensors) {
    const Saved saved = save();
    std::ostringstream buckets;
    for (const auto& bucket : saved.reducer.buckets) {
      for (const std::string& name : bucket) buckets << name << " ";
      buckets << "/ ";
    }
    tensors["buckets " + buckets.str()] = at::zeros({});
    tensors["reductions"] = hooks::int_tensor(saved.reducer.reductions);
    tensors["bytes sent"] = hooks::int_tensor(ddp_.payload_bytes_sent());
    tensors["bytes without hook"] = hooks::int_tensor(ddp_.payload_bytes_without_hook());
    add_state(tensors, "the hook's", saved.reducer.hook.own());
    if (outer_) {
      tensors["outer bytes sent"] = hooks::int_tensor(outer_->payload_bytes_sent());
      add_state(tensors, "the outer optimizer's", saved.outer.replica);
      add_state(tensors, "of the outer exchange", saved.outer.rank.own());
    }
  }

 private:
  Training(const DrawnTraining& drawn, const ProcessGroupPtr& group, std::shared_ptr<DrawnNet> net)
      : drawn_(drawn),
        rank_(group->getRank()),
        net_(net),
        ddp_(std::move(net), group, drawn.ddp),
        sgd_(net_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {
    if (drawn.outer) outer_ = std::make_unique<OuterOptimizer>(sgd_, group, *drawn.outer);
  }

  static std::shared_ptr<DrawnNet> loaded_net(const DrawnTraining& drawn, const ProcessGroupPtr& group,
                                              const std::vector<Saved>& saved) {
    auto net = std::make_shared<DrawnNet>(drawn.net, kOtherParameters);
    const Saved& own = saved.at(static_cast<size_t>(group->getRank()));
    if (own.replicas_are_equal) {
      set(net->parameters(), own.parameters);
      set(net->buffers(), saved.at(0).buffers);
    }
    return net;
  }

  static std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
    return copies;
  }

  static void set(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(values.at(i));
  }

  // A number that is the same on all ranks and differs between micro-batches.
  uint64_t hash(int64_t batch = 0) const {
    return std::mt19937_64(drawn_.seed * 1000 + static_cast<uint64_t>(step_ * 10 + batch))();
  }

  uint64_t used_layers(int64_t batch) const { return hash(batch) >> (drawn_.ranks_differ ? 8 * rank_ : 0); }

  at::Tensor inputs(int64_t batch) const {
    return seeded_randn(hash(batch) + static_cast<uint64_t>(rank_), {5, drawn_.net.width});
  }

  void run_pass(int64_t batch) {
    const at::Tensor x = inputs(batch);
    ddp_.backward((ddp_.forward(x, used_layers(batch)) - x.flip(1)).square().mean());
  }

  void evaluate() {
    const at::NoGradGuard no_grad;
    ddp_.forward(inputs(0), used_layers(0));
  }

  const DrawnTraining& drawn_;
  const int64_t rank_;
  const std::shared_ptr<DrawnNet> net_;
  DistributedDataParallel<std::shared_ptr<DrawnNet>> ddp_;
  torch::optim::SGD sgd_;
  std::unique_ptr<OuterOptimizer> outer_;
  int64_t step_ = 0;
};

// The results of each rank, by rank.
struct Continued {
  std::vector<Saved> saved;
  std::vector<Tensors> at_save;
  std::vector<Tensors> later;
};

Continued run_through(const DrawnTraining& drawn) {
  const auto ranks = static_cast<size_t>(drawn.world_size);
  Continued result{
      .saved = std::vector<Saved>(ranks), .at_save = std::vector<Tensors>(ranks), .later = std::vector<Tensors>(ranks)};
  run_ranks(drawn.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto place = static_cast<size_t>(rank);
    Training training(drawn, group);
    for (int64_t step = 0; step < drawn.steps_before; ++step) training.take_step();
    training.settle();
    result.saved[place] = training.save();
    training.record_state(result.at_save[place]);
    for (int64_t step = 0; step < drawn.steps_after; ++step) {
      training.take_step();
      training.record_step(result.later[place]);
    }
    training.record_state(result.later[place]);
  });
  return result;
}

void expect_the_same_from(const Continued& continued, const DrawnTraining& drawn) {
  const auto ranks = static_cast<size_t>(drawn.world_size);
  std::vector<Tensors> at_load(ranks);
  std::vector<Tensors> later(ranks);
  run_ranks(drawn.world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    const auto place = static_cast<size_t>(rank);
    Training training(drawn, group, continued.saved);
    training.record_state(at_load[place]);
    for (int64_t step = 0; step < drawn.steps_after; ++step) {
      training.take_step();
      training.record_step(later[place]);
    }
    training.record_state(later[place]);
  });
  for (size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(first_difference(continued.at_save[rank], at_load[rank]), "") << "right after loading, rank " << rank;
    EXPECT_EQ(first_difference(continued.later[rank], later[rank]), "") << "after more steps, rank " << rank;
  }
}

// Failures that trials have found.

// The forward after the last step of a warm-up broadcasts buffers.
TEST(ResumeTest, AtTheEndOfAWarmUp) {
  for (const int64_t start : {2, 3}) {
    DrawnTraining training;
    training.world_size = 2;
    training.ddp.hook("post_local_sgd").local({.start = start, .group_size = 1});
    training.net = {.layers = {{}}, .has_buffer = true};
    training.steps_before = 2;
    training.steps_after = 2;
    expect_the_same_from(run_through(training), training);
  }
}

// In two levels a rank carries residuals of the first step's buckets over to the second step's buckets.
TEST(ResumeTest, OnceResidualsHaveArrivedInOtherBuckets) {
  for (const int64_t steps_before : {1, 2, 3}) {
    DrawnTraining training;
    training.world_size = 4;
    training.ddp.hook("int4").bucket_cap_mb(1e-3).wire(
        {.error_feedback = true, .node_size = 2, .link_gbit = 1, .link_us = 50});
    training.net = {.width = 16, .layers = {{}, {}, {}}, .has_cube = true};
    training.steps_before = steps_before;
    training.steps_after = 3;
    expect_the_same_from(run_through(training), training);
  }
}

// A static graph is learnt again. With no_sync before, gradients exist when its Reducer is created. A third is not
// exact in float32.
TEST(ResumeTest, InAStaticGraphThatAccumulatesInBucketViews) {
  DrawnTraining training;
  training.world_size = 3;
  training.ddp.static_graph(true).gradient_as_bucket_view(true);
  training.net = {.layers = {{}, {.dtype = at::kDouble}}};
  training.micro_batches = 2;
  training.steps_before = 3;
  training.steps_after = 2;
  expect_the_same_from(run_through(training), training);
}

class ResumeTrialsTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ResumeTrialsTest, EndsWithTheBitsOfATrainingThatWasNotInterrupted) {
  const DrawnTraining drawn = draw_training(GetParam());
  std::cout << text_of(drawn) << std::endl;  // Printed before it can crash.
  expect_the_same_from(run_through(drawn), drawn);
}

uint64_t number_in(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

// Every pair of a hook and a mode, and a third of the pairs once more with other options.
uint64_t usual_trials() { return test::kSanitized ? 30 : drawn_pairs() * 4 / 3; }

std::vector<uint64_t> seeds() {
  const uint64_t first = number_in("NARROWCAST_FIRST_TRIAL", 0);
  const uint64_t count = number_in("NARROWCAST_TRIALS", usual_trials());
  std::vector<uint64_t> seeds;
  for (uint64_t seed = first; seed < first + count; ++seed) seeds.push_back(seed);
  return seeds;
}

TEST(UsualResumeTrials, HaveEveryHookInEveryModeWithSeveralRanks) {
  if (test::kSanitized) GTEST_SKIP() << "sanitized trials are slow, so they are fewer";
  std::set<std::pair<std::string, DrawnMode>> missing;
  for (const std::string& hook : hooks::comm_hook_names()) {
    for (uint64_t mode = 0; mode < kDrawnModes; ++mode) missing.emplace(hook, static_cast<DrawnMode>(mode));
  }
  for (uint64_t seed = 0; seed < usual_trials(); ++seed) {
    const DrawnTraining drawn = draw_training(seed);
    EXPECT_EQ(drawn.ddp.static_graph(), drawn.mode == DrawnMode::kStaticGraph) << seed;
    EXPECT_EQ(drawn.ddp.find_unused_parameters(), drawn.mode == DrawnMode::kUnusedParameters) << seed;
    if (drawn.world_size > 1) missing.erase({drawn.ddp.hook(), drawn.mode});
  }
  for (const auto& [hook, mode] : missing) ADD_FAILURE() << hook << " in mode " << static_cast<int>(mode);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ResumeTrialsTest, ::testing::ValuesIn(seeds()),
                         [](const auto& info) { return "seed_" + std::to_string(info.param); });

}  // namespace
}  // namespace narrowcast::testing

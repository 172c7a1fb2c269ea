#include "trainer/train/options/plan_entries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/gpt.h>
#include <narrowcast/mlp.h>
#include "tests/trainer/train/job/small_job.h"
#include "trainer/train/job/plan.h"

namespace narrowcast::options {
namespace {

using ::testing::Contains;
using testing::small_job;
using testing::TemporaryFolder;

size_t place_of(const std::string& name) {
  const std::vector<std::string>& names = entries_by_cause();
  const auto found = std::ranges::find(names, name);
  EXPECT_NE(found, names.end()) << name;
  return static_cast<size_t>(found - names.begin());
}

TEST(EntriesByCause, HaveEachEntryAfterThoseThatItFollowsFrom) {
  EXPECT_EQ(entries_by_cause().front(), "data");
  struct CauseAndEffect {
    const char* cause;
    const char* effect;
  };
  for (const auto& [cause, effect] : {CauseAndEffect{"data_hash", "training_samples"},
                                      CauseAndEffect{"data_hash", "model_options"},
                                      CauseAndEffect{"version", "model_options"},
                                      CauseAndEffect{"model", "model_options"},
                                      CauseAndEffect{"layers", "parameters"},
                                      CauseAndEffect{"model_options", "parameters"},
                                      CauseAndEffect{"model_options", "bucket_cap_mb"},
                                      CauseAndEffect{"model_options", "tokens_per_step"},
                                      CauseAndEffect{"batch_size", "tokens_per_step"},
                                      CauseAndEffect{"batch_size", "batch_size_per_rank"},
                                      CauseAndEffect{"optimizer", "learning_rate"},
                                      CauseAndEffect{"optimizer", "momentum"},
                                      CauseAndEffect{"learning_rate", "min_learning_rate"},
                                      CauseAndEffect{"schedule", "min_learning_rate"},
                                      CauseAndEffect{"steps", "warmup_steps"},
                                      CauseAndEffect{"steps", "decay_steps"},
                                      CauseAndEffect{"hook", "hook_format"},
                                      CauseAndEffect{"hook", "channel_size"},
                                      CauseAndEffect{"sync_every", "replicas"},
                                      CauseAndEffect{"node_size", "group_of_rank"}}) {
    EXPECT_LT(place_of(cause), place_of(effect)) << cause << " and " << effect;
  }
}

// A checkpoint has each option of the model by itself.
TEST(EntriesByCause, HaveEachOptionOfModelsBeforeTheNumberOfParameters) {
  for (const std::vector<std::string>& options : {models::Gpt::option_names(), models::Mlp::option_names()}) {
    for (const std::string& option : options) {
      EXPECT_LT(place_of(option), place_of("parameters")) << option;
    }
  }
}

TEST(EntriesByCause, AreAllThatPlansHold) {
  const TemporaryFolder folder;
  std::vector<job::TrainJob> jobs(6, small_job(folder));
  jobs[1].ddp.hook("auto");
  jobs[2].ddp.hook("quantize_per_channel");
  jobs[2].training.early_stop = 1;
  jobs[2].checkpoints.folder = "c";
  jobs[3].ddp.hook("batched_power_sgd");
  jobs[3].training.learning_rate.schedule = ScheduleKind::kWsd;
  jobs[4].ddp.hook("post_local_sgd");
  jobs[4].outer = OuterOptions().sync_every(2);
  jobs[5].verification = verification::VerificationOptions{.hooks = {"int8"}};
  for (const job::TrainJob& job : jobs) {
    const nlohmann::json plan = job::make_plan(job, job::make_inputs(job), 2, 1);
    for (const auto& [name, value] : plan.items()) {
      EXPECT_THAT(entries_by_cause(), Contains(name)) << job.ddp.hook();
    }
  }
}

TEST(AddOptions, LeavesOutWhatHasNoEffect) {
  job::TrainJob job;
  nlohmann::json plan;
  add_options(plan, job);
  for (const char* const name : {"dropout", "early_stop", "decay_steps", "checkpoint_every", "init_from", "resume"}) {
    EXPECT_FALSE(plan.contains(name)) << name;
  }
  EXPECT_EQ(plan["warmup_steps"], 30);
  EXPECT_EQ(plan["min_learning_rate"], 5e-4);
  EXPECT_EQ(plan["optimizer"], "adamw");
  job.checkpoints.folder = "c";
  add_options(plan, job);
  EXPECT_EQ(plan["checkpoint_every"], 100);
  EXPECT_EQ(plan["resume"], false);
}

// The name that check_equal_on_all_ranks gives: the first that both have and that differs.
std::string first_difference(const job::TrainJob& one, const job::TrainJob& other) {
  const auto values_of = [](const job::TrainJob& job) {
    return compared_values(job::make_plan(job, job::make_inputs(job), 2));
  };
  const std::vector<NamedValue> of_other = values_of(other);
  for (const NamedValue& value : values_of(one)) {
    const auto same_name = std::ranges::find(of_other, value.name, &NamedValue::name);
    if (same_name != of_other.end() && same_name->value != value.value) return value.name;
  }
  return "none";
}

TEST(ComparedValues, NameTheCause) {
  const TemporaryFolder folder;
  const job::TrainJob one = small_job(folder);
  job::TrainJob other = one;
  EXPECT_EQ(first_difference(one, other), "none");
  other.training.optimizer.kind = training::OptimizerKind::kSgd;
  other.training.optimizer.momentum = 0.9;
  other.training.learning_rate.peak = 0.1;
  EXPECT_EQ(first_difference(one, other), "optimizer");
  job::TrainJob decaying = one;
  decaying.training.learning_rate.schedule = ScheduleKind::kWsd;
  decaying.training.steps = 100;
  other = decaying;
  other.training.steps = 200;
  EXPECT_EQ(first_difference(decaying, other), "steps");
  other = one;
  other.model_options["width"] = 1024;
  other.ddp.bucket_cap_mb(std::nullopt);
  EXPECT_EQ(first_difference(one, other), "model_options");
}

}  // namespace
}  // namespace narrowcast::options

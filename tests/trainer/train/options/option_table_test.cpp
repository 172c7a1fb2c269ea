#include "trainer/train/options/option_table.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include <narrowcast/outer_options.h>
#include "tests/support/error_message.h"

namespace narrowcast::options {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

program::Description description_of(Arguments& arguments) {
  program::Description description;
  description.flags = all_flags(arguments);
  for (const program::FlagGroup& group : flag_groups()) {
    description.groups.push_back(group);
  }
  return description;
}

TEST(OptionTable, HasEachFlagOnceInTheOrderOfItsGroups) {
  Arguments arguments;
  EXPECT_NO_THROW(program::check_flag_groups(description_of(arguments)));
  for (const Option& option : all_options(arguments)) {
    EXPECT_FALSE(option.help.empty()) << option.flag;
    EXPECT_TRUE(option.in_plan == InPlan::kNo || !option.planned || option.in_plan == InPlan::kValue) << option.flag;
  }
}

TEST(OptionTable, HasEveryOptionOfHooksUnderItsName) {
  const std::vector<std::string> flags = flags_of(Group::kExchange);
  for (const auto& options : {hooks::named_options({}), OuterOptions().named()}) {
    for (const hooks::NamedOption& option : options) {
      EXPECT_THAT(flags, Contains(option.name));
    }
  }
}

// Each default, as --help prints it, is a valid value of its flag and changes nothing.
TEST(OptionTable, DefaultsAreValues) {
  Arguments arguments;
  for (const program::Flag& flag : all_flags(arguments)) {
    if (!flag.default_value.empty()) {
      EXPECT_NO_THROW(flag.set(flag.default_value)) << flag.name;
    }
  }
  EXPECT_EQ(arguments.job.training.steps, training::TrainingOptions().steps);
  EXPECT_EQ(arguments.job.ddp.hook(), "auto");
  EXPECT_FALSE(arguments.job.ddp.bucket_cap_mb().has_value());
  EXPECT_FALSE(arguments.job.ddp.wire().node_size.has_value());
  EXPECT_FALSE(arguments.job.ddp.local().group_size.has_value());
}

TEST(OptionTable, SetsTheMembers) {
  Arguments arguments;
  const program::CommandLine line(description_of(arguments),
                                  {"--steps=7", "--optimizer=sgd", "--data=a,b", "--width=8", "--hook=int8",
                                   "--hook_format=int4_b32", "--levels=one", "--link_gbit=2.5", "--bucket_cap_mb=3",
                                   "--local_group=none", "--sync_every=5", "--outer_mix=0.5", "--timeout_seconds=9",
                                   "--checkpoint_dir=c", "--resume", "--noskip_nonfinite_steps", "--rank=1"});
  const job::TrainJob& job = arguments.job;
  EXPECT_EQ(job.training.steps, 7);
  EXPECT_EQ(job.training.optimizer.kind, training::OptimizerKind::kSgd);
  EXPECT_THAT(job.data, ElementsAre("a", "b"));
  EXPECT_EQ(job.model_options, (models::ModelOptions{{"width", 8}}));
  EXPECT_EQ(job.ddp.hook(), "int8");
  EXPECT_EQ(job.ddp.wire().format, WireFormat::kInt4B32);
  EXPECT_EQ(job.ddp.wire().levels, hooks::Levels::kOne);
  EXPECT_EQ(job.ddp.wire().link_gbit, 2.5);
  EXPECT_EQ(job.ddp.bucket_cap_mb(), 3);
  EXPECT_EQ(job.ddp.local().group_size, 1);
  EXPECT_EQ(arguments.outer.sync_every(), 5);
  EXPECT_EQ(arguments.outer.mix(), 0.5);
  EXPECT_EQ(job.group.timeout, std::chrono::seconds(9));
  EXPECT_EQ(job.checkpoints.folder, "c");
  EXPECT_TRUE(job.checkpoints.resume);
  EXPECT_FALSE(job.training.skip_nonfinite_steps);
  EXPECT_EQ(arguments.place.flags.rank, 1);
  EXPECT_TRUE(line.given("rank"));
}

TEST(OptionTable, KnowsWhatAVerificationTakes) {
  EXPECT_THAT(unverified_flags_of(Group::kTraining), Contains("steps"));
  EXPECT_THAT(unverified_flags_of(Group::kTraining), Not(Contains("batch_size")));
  EXPECT_THAT(unverified_flags_of(Group::kProcessors), ElementsAre("precision"));
  EXPECT_EQ(unverified_flags_of(Group::kOutput), flags_of(Group::kOutput));
  EXPECT_EQ(unverified_flags_of(Group::kCheckpoints), flags_of(Group::kCheckpoints));
  EXPECT_THAT(unverified_flags_of(Group::kExchange), Contains("sync_every"));
  EXPECT_THAT(unverified_flags_of(Group::kExchange), Not(Contains("local_group")));
}

// The message of check_ranges_of for a job after the change.
std::string complaint(void (*change)(job::TrainJob&)) {
  job::TrainJob job;
  change(job);
  return testing::error_message<c10::ValueError>([&] { check_ranges_of(job); });
}

TEST(CheckRangesOf, NamesTheOptionAndTheValue) {
  using job::TrainJob;
  struct OutOfRange {
    void (*change)(TrainJob&);
    const char* message;
  };
  for (const auto& [change, message] :
       {OutOfRange{[](TrainJob&) {}, "nothing was thrown"},
        OutOfRange{[](TrainJob& j) { j.training.steps = 0; }, "steps: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.training.batch_size = 0; }, "batch_size: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.training.accumulation_steps = 0; },
                   "accumulation_steps: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.training.eval_every = -1; }, "eval_every: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.training.eval_batches = -1; }, "eval_batches: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.training.log_every = 0; }, "log_every: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.training.max_skipped_steps = 0; },
                   "max_skipped_steps: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.training.check_replicas_every = -1; },
                   "check_replicas_every: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.training.early_stop = -1; }, "early_stop: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.training.clip_grad_norm = -1; },
                   "clip_grad_norm: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.training.clip_grad_norm = std::nan(""); },
                   "clip_grad_norm: must be at least 0, but is nan"},
        OutOfRange{[](TrainJob& j) { j.training.optimizer.momentum = 1; },
                   "momentum: must be at least 0 and below 1, but is 1"},
        OutOfRange{[](TrainJob& j) { j.output.sample_length = -1; }, "sample_length: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.checkpoints.every = 0; }, "checkpoint_every: must be at least 1, but is 0"},
        OutOfRange{[](TrainJob& j) { j.checkpoints.keep = -1; }, "keep_checkpoints: must be at least 0, but is -1"},
        OutOfRange{[](TrainJob& j) { j.seed = -1; }, "seed: must be at least 0, but is -1"}}) {
    EXPECT_EQ(complaint(change), message);
  }
}

}  // namespace
}  // namespace narrowcast::options

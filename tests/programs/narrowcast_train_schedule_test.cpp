// The learning rate's schedule, and the end of a training: real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class NarrowcastTrainScheduleTest : public ::testing::Test {
 protected:
  Words flags(const std::string& name, const Words& more) const {
    return small_gpt() +
           Words{"--hook=none",
                 "--log_every=1",
                 "--warmup_steps=2",
                 "--learning_rate=0.01",
                 "--output_dir=" + folder / (name + "/run"),
                 "--checkpoint_dir=" + folder / (name + "/checkpoints"),
                 "--checkpoint_every=2",
                 "--keep_checkpoints=0"} +
           more;
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    return json_lines(folder / (name + "/run/metrics.jsonl"));
  }
  std::vector<double> learning_rates(const std::string& name) const {
    std::vector<double> rates;
    for (const auto& line : metrics(name)) {
      if (line["event"] == "step") rates.push_back(line["learning_rate"]);
    }
    return rates;
  }
  std::string model(const std::string& name) const {
    return files::read_file(folder / (name + "/run/model.safetensors"));
  }
  std::string checkpoint(const std::string& name, int step) const {
    return folder / (name + "/checkpoints/step-0000000" + std::to_string(step));
  }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainScheduleTest, LinearAndWsdFallAsDocumented) {
  ASSERT_EQ(train_on(2, flags("linear", {"--schedule=linear"})).exit_code, 0);
  EXPECT_THAT(learning_rates("linear"), ElementsAre(DoubleEq(0.005), DoubleEq(0.01), DoubleEq(0.00775),
                                                    DoubleEq(0.0055), DoubleEq(0.00325), DoubleEq(0.001)));
  ASSERT_EQ(train_on(2, flags("wsd", {"--schedule=wsd", "--decay_steps=2", "--min_learning_rate=0"})).exit_code, 0);
  EXPECT_THAT(learning_rates("wsd"), ElementsAre(DoubleEq(0.005), 0.01, 0.01, 0.01, DoubleEq(0.005), 0));
}

// Six steps that have decayed continue as if eight had been planned.
TEST_F(NarrowcastTrainScheduleTest, AStablePhaseIsProlongedWithoutLosingBits) {
  const Words wsd = {"--schedule=wsd", "--decay_steps=2"};
  const Words longer = wsd + Words{"--steps=8", "--resume"};
  ASSERT_EQ(train_on(2, flags("whole", longer)).exit_code, 0);
  ASSERT_EQ(train_on(2, flags("short", wsd)).exit_code, 0);
  const ProgramEnd refused = train_on(2, flags("short", longer));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("steps: is 8, but 6 in the checkpoint " + checkpoint("short", 6)));
  Words from_stable = flags("longer", longer) + Words{"--resume_from=" + checkpoint("short", 4)};
  const ProgramEnd end = train_on(2, from_stable);
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.errors, AllOf(HasSubstr("step 4 of 8"), Not(HasSubstr("warning"))));
  EXPECT_EQ(model("longer"), model("whole"));
  EXPECT_NE(model("longer"), model("short"));
}

// The steps change nothing, so that the first evaluation, after step 2, stays the best.
TEST_F(NarrowcastTrainScheduleTest, EndsEarlyAndResumesToTheSameEnd) {
  const Words early =
      flags("early", {"--steps=40", "--eval_every=2", "--early_stop=3", "--learning_rate=1e-300", "--resume"});
  const ProgramEnd end = train_on(2, early);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, AllOf(HasSubstr("ended early      at step 8 of 40, 3 evaluations after the best "),
                                HasSubstr("identical on all ranks")));
  EXPECT_EQ(metrics("early").front()["early_stop"], 3);
  const nlohmann::json whole = metrics("early").back();
  EXPECT_EQ(whole["event"], "end");
  EXPECT_EQ(whole["stopped_early_at"], 8);
  const std::string saved = model("early");
  std::filesystem::remove_all(checkpoint("early", 8));
  std::filesystem::remove_all(checkpoint("early", 6));
  const ProgramEnd resumed = train_on(2, early);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_THAT(resumed.errors, HasSubstr("step 4 of 40"));
  for (const char* const key : {"stopped_early_at", "best_validation_loss", "validation_loss", "training_loss"}) {
    EXPECT_EQ(metrics("early").back()[key], whole[key]) << key;
  }
  EXPECT_EQ(model("early"), saved);
}

TEST_F(NarrowcastTrainScheduleTest, EndsEarlyRightAfterAnExchange) {
  Words local = flags("local", {"--steps=40", "--sync_every=4", "--eval_every=4", "--early_stop=2", "--overlap_steps=1",
                                "--learning_rate=1e-300"});
  std::erase(local, "--hook=none");
  const ProgramEnd end = train_on(2, local);
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(metrics("local").back()["stopped_early_at"], 12);
  EXPECT_EQ(metrics("local").back()["outer_exchanges"], 3);
  EXPECT_EQ(metrics("local").back()["joined_exchanges"], 3);
  EXPECT_EQ(metrics("local").back()["replicas_identical"], true);
}

}  // namespace
}  // namespace narrowcast::testing

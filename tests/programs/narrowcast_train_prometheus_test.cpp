// The file that node_exporter reads from a training: real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/reporting/prometheus_text.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class NarrowcastTrainPrometheusTest : public ::testing::Test {
 protected:
  Words flags(const std::string& file = "training.prom") const {
    return small_gpt() + Words{"--prometheus_file=" + folder / file, "--output_dir=" + folder / "run"};
  }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainPrometheusTest, HoldsWhatTheMetricsSayLast) {
  const ProgramEnd end = train_on(
      2, flags() + Words{"--hook=int8", "--node_size=1", "--log_every=4", "--eval_every=5", "--bucket_cap_mb=25"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const auto metrics = parse_prometheus(files::read_file(folder / "training.prom"));
  const nlohmann::json plan = json_lines(folder / "run/metrics.jsonl").front();
  nlohmann::json step;
  for (const auto& line : json_lines(folder / "run/metrics.jsonl")) {
    if (line["event"] == "step") step = line;
  }
  const nlohmann::json last = json_lines(folder / "run/metrics.jsonl").back();
  const auto value = [&](const std::string& name) { return metrics.at("narrowcast_" + name).value; };
  EXPECT_EQ(value("step"), 6);
  EXPECT_EQ(value("training_loss"), step["loss"]);
  EXPECT_EQ(value("validation_loss"), last["validation_loss"]);
  EXPECT_EQ(value("learning_rate"), step["learning_rate"]);
  EXPECT_EQ(value("gradient_norm"), step["gradient_norm"]);
  EXPECT_EQ(value("tokens_per_second"), step["units_per_second"]);
  EXPECT_EQ(value("training_seconds_total"), step["seconds"]);
  EXPECT_EQ(value("sent_payload_bytes_total"), 6 * plan["payload_bytes_per_step_and_rank"].get<int64_t>());
  EXPECT_EQ(value("sent_measuring_bytes_total"), step["measuring_bytes_sent"]);
  EXPECT_EQ(value("compression_ratio"), step["compression"]);
  EXPECT_EQ(value("skipped_steps_total"), 0);
  EXPECT_EQ(metrics.size(), 11u);
  EXPECT_THAT(metrics.at("narrowcast_step").labels,
              UnorderedElementsAre(Pair("model", "char_gpt"), Pair("hook", "int8")));
}

TEST_F(NarrowcastTrainPrometheusTest, MustBeInAFolder) {
  const Words missing = flags("none/training.prom");
  const std::string line = "prometheus_file: " + folder / "none/training.prom" + ": folder ";
  for (const ProgramEnd& end : {train_alone(missing + Words{"--dry_run"}), train_on(2, missing)}) {
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.errors, HasSubstr(line));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run")) << "nothing is made before";
}

TEST_F(NarrowcastTrainPrometheusTest, AFullDiskEndsTheTraining) {
  const Words program = Words{kNarrowcastTrain} + small_gpt() + Words{"--prometheus_file=" + folder / "training.prom"};
  const ProgramEnd end = run_to_end(Words{"sh", "-c", "ulimit -f 1; exec \"$@\"", "sh"} + program, alone());
  EXPECT_EQ(end.exit_code, 6);
  EXPECT_THAT(end.errors, HasSubstr("training.prom: cannot be written: File too large\n"));
  EXPECT_EQ(folder.entries(), 0);
}

}  // namespace
}  // namespace narrowcast::testing

// Results of a training for people: pages and event files of real processes, sockets and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/programs/train_commands.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class NarrowcastTrainReportsTest : public ::testing::Test {
 protected:
  Words run(const std::string& name) const { return small_gpt() + Words{"--output_dir=" + folder / name}; }
  // The lines of a training that a page shows.
  static nlohmann::json events_of(const std::string& page, size_t training) {
    const std::string begin = "id=\"data\">";
    const size_t at = page.find(begin) + begin.size();
    return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at))["trainings"][training]["events"];
  }
  nlohmann::json metrics_of(const std::string& name) const { return json_lines(folder / name + "/metrics.jsonl"); }
  const TemporaryFolder folder;
};

TEST_F(NarrowcastTrainReportsTest, APageHoldsTheMetrics) {
  const Words flags = {"--hook=int8", "--node_size=1", "--log_every=2", "--eval_every=3", "--bucket_cap_mb=25"};
  const ProgramEnd end = train_on(2, run("run") + flags + Words{"--report=" + folder / "run/page.html"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  const nlohmann::json events = events_of(files::read_file(folder / "run/page.html"), 0);
  EXPECT_EQ(events, metrics_of("run"));
  EXPECT_EQ(events.back()["event"], "end");
}

TEST_F(NarrowcastTrainReportsTest, APageComparesTrainings) {
  for (const std::string seed : {"1", "2"}) {
    const ProgramEnd end = train_alone(run("run" + seed) + Words{"--seed=" + seed});
    ASSERT_EQ(end.exit_code, 0) << end.errors;
  }
  const std::string both = "--compare=" + folder / "run1" + "," + folder / "run2/metrics.jsonl";
  const ProgramEnd end = train_alone({both, "--report=" + folder / "page.html"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_EQ(end.output, "");
  const std::string page = files::read_file(folder / "page.html");
  EXPECT_EQ(events_of(page, 0), metrics_of("run1"));
  EXPECT_EQ(events_of(page, 1), metrics_of("run2"));
}

TEST_F(NarrowcastTrainReportsTest, WhatCannotBeWrittenIsKnownBeforehand) {
  std::filesystem::create_directory(folder / "folder.html");
  folder.write("file", "");
  folder.write("run/metrics.jsonl", "old");
  const Words checkpoints = {"--checkpoint_dir=" + folder / "checkpoints", "--checkpoint_every=3"};
  ASSERT_EQ(train_alone(small_gpt() + checkpoints).exit_code, 0);
  const Words replace = checkpoints + Words{"--overwrite"};
  for (const auto& [flag, line] :
       {std::pair{"--report=" + folder / "none/x.html", "report: " + folder / "none/x.html" + ": folder "},
        std::pair{"--report=" + folder / "folder.html", std::string("cannot be written: Is a directory")},
        std::pair{"--tensorboard_dir=" + folder / "file/x",
                  "tensorboard_dir: cannot create folder " + folder / "file/x"}}) {
    const Words command = run("run") + replace + Words{flag};
    for (const ProgramEnd& end : {train_alone(command + Words{"--dry_run"}), train_on(2, command)}) {
      EXPECT_EQ(end.exit_code, 2) << flag;
      EXPECT_THAT(end.errors, HasSubstr(line));
    }
    EXPECT_EQ(files::read_file(folder / "run/metrics.jsonl"), "old") << "nothing is replaced before";
    EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints/step-00000006/manifest.json")) << flag;
  }
}

// tests/trainer/train/flags/train_program_test.cpp has the other wrong flags.
TEST_F(NarrowcastTrainReportsTest, AComparisonOfNothingLeavesNoFile) {
  const ProgramEnd end = train_alone({"--compare=/nowhere", "--report=" + folder / "x.html"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("/nowhere"));
  EXPECT_EQ(folder.entries(), 0);
}

TEST_F(NarrowcastTrainReportsTest, AFullDiskEndsTheTraining) {
  const Words program = Words{kNarrowcastTrain} + small_gpt() + Words{"--tensorboard_dir=" + folder / "events"};
  const ProgramEnd end = run_to_end(Words{"sh", "-c", "ulimit -f 0; exec \"$@\"", "sh"} + program, alone());
  EXPECT_THAT(end.errors, HasSubstr(": cannot be written: File too large\n"));
  EXPECT_EQ(end.exit_code, 6);
}

// The limit of 16 KiB for files is above the model's size and below the page's.
TEST_F(NarrowcastTrainReportsTest, APageThatCannotBeWrittenCostsNoModel) {
  const Words program = Words{kNarrowcastTrain} + small_gpt() +
                        Words{"--width=8", "--output_dir=" + folder / "run", "--report=" + folder / "page.html"};
  const ProgramEnd end = run_to_end(Words{"sh", "-c", "ulimit -f 32; exec \"$@\"", "sh"} + program, alone());
  EXPECT_EQ(end.exit_code, 6);
  EXPECT_THAT(end.errors, HasSubstr("page.html"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/model.safetensors")) << end.errors;
}

}  // namespace
}  // namespace narrowcast::testing

// Under srun, with a Slurm cluster of the test.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "tests/programs/other_launchers/launched_training.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class SlurmTest : public LaunchedTraining {
 protected:
  void SetUp() override {
    const ProgramEnd probe = launch(cluster + Words{"true"});
    if (probe.exit_code == 77) {
      GTEST_SKIP() << probe.output;
    }
    ASSERT_EQ(probe.exit_code, 0) << probe.errors;
  }

  const Words cluster = {kSlurmOneNode, folder / "slurm"};
};

TEST_F(SlurmTest, TrainsAsNarrowcastRunDoes) {
  expect_parameters_of_narrowcast_run(cluster + Words{"srun", "--ntasks=2", "--overcommit"});
}

// Runs docs/examples/narrowcast.sbatch unchanged, on one node and with a small model.
TEST_F(SlurmTest, TheBatchScriptOfTheDocumentsTrains) {
  const std::string log = folder / "job.log";
  folder.write("book.txt", files::read_file(kBook));
  const std::string programs = std::filesystem::path(kNarrowcastTrain).parent_path().string();
  const ProgramEnd end =
      launch(cluster +
                 Words{"sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--overcommit",
                       "--chdir=" + folder.path().string(), "--output=" + log, kSbatchExample} +
                 small_gpt() + Words{"--output_dir=" + folder / "batch"},
             {{"PATH", programs + ":" + std::getenv("PATH")}});
  ASSERT_TRUE(std::filesystem::exists(log)) << end.errors;
  EXPECT_EQ(end.exit_code, 0) << files::read_file(log);
  EXPECT_THAT(files::read_file(log), HasSubstr("identical on all ranks"));
  EXPECT_TRUE(std::filesystem::exists(folder / "batch/model.safetensors"));
}

// Slurm sends the signal before the time limit, as the script requests; here scancel sends it.
TEST_F(SlurmTest, TheBatchScriptOfTheDocumentsIsQueuedAgainAfterACheckpoint) {
  const std::string log = folder / "job.log";
  folder.write("book.txt", files::read_file(kBook));
  const std::string programs = std::filesystem::path(kNarrowcastTrain).parent_path().string();
  const std::string script = R"(job=$(sbatch --parsable "$@") || exit
                                until grep -q "step " "$LOG" 2>/dev/null; do sleep 0.2; done
                                scancel --signal=USR1 "$job"
                                until scontrol show job "$job" | grep -q "Restarts=1"; do sleep 0.2; done
                                scancel "$job")";
  const ProgramEnd end =
      launch(cluster +
                 Words{"sh", "-c", script, "sh", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1",
                       "--overcommit", "--chdir=" + folder.path().string(), "--output=" + log, kSbatchExample} +
                 small_gpt() + Words{"--steps=1000000", "--log_every=1", "--eval_batches=0"},
             {{"PATH", programs + ":" + std::getenv("PATH")}, {"LOG", log}});
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  ASSERT_TRUE(std::filesystem::exists(log)) << end.errors;
  EXPECT_THAT(files::read_file(log), HasSubstr("SIGUSR1: stopped after step "));
  const auto job = std::filesystem::directory_iterator(folder / "runs")->path();
  EXPECT_FALSE(checkpoint::checkpoint_steps(job / "checkpoints").empty());
}

}  // namespace
}  // namespace narrowcast::testing

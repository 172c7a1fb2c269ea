// Under Open MPI's mpirun.
#include <gmock/gmock.h>

#include "tests/programs/other_launchers/launched_training.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class OpenMpiLauncherTest : public LaunchedTraining {
 protected:
  void SetUp() override {
    if (!is_installed("mpirun.openmpi")) {
      GTEST_SKIP() << "no mpirun.openmpi; run third_party/setup --launchers";
    }
  }

  // The command that starts the ranks of a job. Each job keeps Open MPI's files in its own folder. Otherwise two jobs
  // that start at once both make the user's folder in /tmp, and the second one fails.
  Words mpirun(const std::string& job) const {
    const std::string files = folder / (job + "_files");
    return {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base", files, "-n", "2"};
  }
};

TEST_F(OpenMpiLauncherTest, TrainsAsNarrowcastRunDoes) { expect_parameters_of_narrowcast_run(mpirun("launched")); }

TEST_F(OpenMpiLauncherTest, TwoJobsAtOnceDoNotMeet) {
  RunningProgram first(mpirun("first") + Words{kNarrowcastTrain} + flags_into("first"), alone());
  RunningProgram second(mpirun("second") + Words{kNarrowcastTrain} + flags_into("second"), alone());
  for (RunningProgram* const job : {&first, &second}) {
    const ProgramEnd end = job->wait();
    EXPECT_EQ(end.exit_code, 0) << end.errors;
  }
  compare_parameters("first");
}

TEST_F(OpenMpiLauncherTest, AStaleRankIsAnError) {
  const ProgramEnd end = launch(mpirun("stale") + Words{kNarrowcastTrain} + flags_into("none"), {{"RANK", "7"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("RANK=7 contradicts OMPI_COMM_WORLD_RANK=0 of Open MPI"));
}

}  // namespace
}  // namespace narrowcast::testing

// Under MPICH's mpiexec (Hydra), on which Intel's is based.
#include <gmock/gmock.h>

#include "tests/programs/other_launchers/launched_training.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class MpichTest : public LaunchedTraining {
 protected:
  void SetUp() override {
    if (!is_installed("mpiexec.hydra")) {
      GTEST_SKIP() << "no mpiexec.hydra; run third_party/setup --launchers";
    }
  }
};

TEST_F(MpichTest, TrainsAsNarrowcastRunDoes) {
  expect_parameters_of_narrowcast_run(
      {"mpiexec.hydra", "-n", "2", "-genv", "MASTER_PORT", std::to_string(free_port())});
}

TEST_F(MpichTest, ThePortHasToBeNamed) {
  const ProgramEnd end = launch(Words{"mpiexec.hydra", "-n", "2", kNarrowcastTrain} + flags_into("none"));
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("MASTER_PORT is not set"));
}

}  // namespace
}  // namespace narrowcast::testing

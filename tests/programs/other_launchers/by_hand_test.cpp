// Ranks that are started one by one, with flags that define their place.
#include <gmock/gmock.h>

#include "tests/programs/other_launchers/launched_training.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

class ByHandTest : public LaunchedTraining {
 protected:
  // Flags of one of two ranks on this node.
  Words flags_of(int rank) const {
    return {"--rank=" + std::to_string(rank), "--world_size=2", "--master_addr=127.0.0.1",
            "--master_port=" + std::to_string(port)};
  }

  const int64_t port = free_port();
};

TEST_F(ByHandTest, TrainsAsNarrowcastRunDoes) {
  RunningProgram rank0(Words{kNarrowcastTrain} + flags_of(0) + flags_into("theirs"), alone());
  RunningProgram rank1(Words{kNarrowcastTrain} + flags_of(1) + flags_into("theirs"), alone());
  EXPECT_EQ(rank0.wait().exit_code, 0);
  EXPECT_EQ(rank1.wait().exit_code, 0);
  compare_parameters("theirs");
}

TEST_F(ByHandTest, WrongFlagsAreNamedByEveryProgram) {
  for (const std::string& program : {kNarrowcastTrain, kNarrowcastBench}) {
    const ProgramEnd end = launch(Words{program} + flags_of(2));
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.errors, HasSubstr("--rank=2 must be less than --world_size=2"));
  }
  const ProgramEnd end = launch(Words{kNarrowcastTrain, "--interface=no-such-if"} + flags_of(0) + small_gpt());
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.errors, HasSubstr("interface 'no-such-if' does not exist"));
}

}  // namespace
}  // namespace narrowcast::testing

// Under stock torchrun.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "tests/programs/other_launchers/launched_training.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class TorchrunTest : public LaunchedTraining {
 protected:
  void SetUp() override {
    std::istringstream folders(kPythonTorch);
    for (std::string each; std::getline(folders, each, ':');) {
      if (!std::filesystem::exists(each) || !std::filesystem::exists(kPython3)) {
        GTEST_SKIP() << "no torchrun; run third_party/setup --python";
      }
    }
  }

  const Words torchrun = {kPython3, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"};
  std::map<std::string, std::string> python_path = {{"PYTHONPATH", kPythonTorch},
                                                    {"PYTHONWARNINGS", "ignore"},
                                                    {"PYTHONDONTWRITEBYTECODE", ""},
                                                    {"PYTHONPYCACHEPREFIX", kPythonBytecode}};
};

// In the first attempt rank 1 fails once both have trained; torchrun then ends the other rank, whatever it still does.
// The second attempt finds the first one's addresses in the agent's store, which still exists, and must not use them.
TEST_F(TorchrunTest, TrainsAsNarrowcastRunDoesAlsoAfterARestart) {
  const std::string pipe = folder / "trained";
  ASSERT_EQ(::mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  python_path.emplace("TRAINED", pipe);
  const std::string script = R"("$0" "$@" --overwrite || exit
                                case $TORCHELASTIC_RESTART_COUNT$RANK in
                                  00) echo >"$TRAINED" ;;
                                  01) read -r _ <"$TRAINED"; exit 9 ;;
                                esac)";
  const ProgramEnd end = launch(
      torchrun + Words{"--max_restarts=1", "--no-python", "sh", "-c", script, kNarrowcastTrain} + flags_into("theirs"),
      python_path);
  ASSERT_EQ(end.exit_code, 0) << end.errors << end.output;
  EXPECT_EQ(count_of("identical on all ranks", end.output), 2) << "both attempts trained";
  compare_parameters("theirs");
}

TEST_F(TorchrunTest, TrainsWhereTheAgentLeavesTheStoreToRankZero) {
  python_path.emplace("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
  expect_parameters_of_narrowcast_run(torchrun + Words{"--no-python"}, python_path);
}

TEST_F(TorchrunTest, ShowsWhatAWorkerSaysOfItsFailure) {
  const ProgramEnd end =
      launch(torchrun + Words{"--no-python", kNarrowcastTrain} + small_gpt() + Words{"--batch_size=7"}, python_path);
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.errors, ContainsRegex("traceback *: batch_size: must be divisible by ranks"));
}

// Rank 0 notices before the agent does that rank 1 is gone, and must not be blamed for it.
TEST_F(TorchrunTest, BlamesTheRankThatWasKilled) {
  // torchrun replaces two dollar signs by one.
  const std::string script = R"(echo $$$$ >"$FOLDER/$RANK"; exec "$0" "$@")";
  python_path.emplace("FOLDER", folder.path().string());
  const Words command = torchrun + Words{"--no-python", "sh", "-c", script, kNarrowcastTrain} + small_gpt() +
                        Words{"--steps=1000000", "--log_every=1"};
  std::map<std::string, std::string> environment = alone();
  environment.insert(python_path.begin(), python_path.end());
  RunningProgram program(command, environment);
  program.wait_for_errors("step       1/");
  ASSERT_EQ(::kill(std::stoi(files::read_file(folder / "1")), SIGKILL), 0);
  const ProgramEnd end = program.wait();
  EXPECT_EQ(end.exit_code, 1);
  const size_t root_cause = end.errors.find("Root Cause");
  ASSERT_NE(root_cause, std::string::npos) << end.errors;
  EXPECT_THAT(end.errors.substr(root_cause), AllOf(ContainsRegex("rank *: 1 "), HasSubstr("SIGKILL")));
}

}  // namespace
}  // namespace narrowcast::testing

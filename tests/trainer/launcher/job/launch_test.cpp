#include "trainer/launcher/job/launch.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Jobs on one node whose workers are shell scripts.
class LaunchTest : public ::testing::Test {
 protected:
  static LaunchRequest shell(const std::string& script) {
    LaunchRequest request;
    request.command = {"sh", "-c", script};
    return request;
  }
  int run(const LaunchRequest& request) {
    return launch(request, environment, [this](const std::string& line) { told.push_back(line); });
  }
  std::string refusal(const LaunchRequest& request) {
    return testing::error_message<c10::ValueError>([&] { run(request); });
  }

  const testing::TemporaryFolder temporary_files;
  const testing::TemporaryFolder results;
  EnvironmentVariables environment = {
      {"PATH", "/usr/bin:/bin"}, {"TMPDIR", temporary_files.path().string()}, {"RESULTS", results.path().string()}};
  std::vector<std::string> told;
};

TEST_F(LaunchTest, SucceedsWithItsWorkersAndLeavesNothing) {
  LaunchRequest request = shell("touch $RESULTS/$RANK");
  request.nproc_per_node = "2";
  EXPECT_EQ(run(request), 0);
  EXPECT_EQ(results.entries(), 2);
  EXPECT_EQ(temporary_files.entries(), 0);
  EXPECT_THAT(told, Contains(HasSubstr("OMP_NUM_THREADS is not set")));
}

TEST_F(LaunchTest, FailsAsItsFirstWorkerDoes) {
  EXPECT_EQ(run(shell("exit 7")), 7);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], StartsWith("rank 0 (pid "));
  EXPECT_THAT(told[0], HasSubstr(") failed first: exit code 7, "));
}

TEST_F(LaunchTest, TellsALauncherThatStartedItWhyItFailed) {
  const std::string error_file = results / "error.json";
  environment["TORCHELASTIC_ERROR_FILE"] = error_file;
  EXPECT_EQ(run(shell("exit 7")), 7);
  EXPECT_THAT(program::read_error_file(error_file).message, HasSubstr("failed first: exit code 7"));
}

TEST_F(LaunchTest, TellsWhereTheOutputGoes) {
  LaunchRequest request = shell("echo text");
  request.log_dir = results.path() / "logs";
  request.redirects = "3";
  EXPECT_EQ(run(request), 0);
  EXPECT_THAT(told, Contains(StartsWith("output goes to " + (results / "logs/"))));
  for (const auto& run_folder : std::filesystem::directory_iterator(request.log_dir)) {
    EXPECT_EQ(std::filesystem::file_size(run_folder.path() / "attempt_0/0/stdout.log"), 5U);
  }
}

TEST_F(LaunchTest, RefusesWhatCannotBeCarriedOutBeforeAnyWorkerRuns) {
  LaunchRequest request = shell("touch $RESULTS/ran");
  request.nproc_per_node = "none";
  EXPECT_THAT(refusal(request), StartsWith("--nproc_per_node=none: must be a number from 1"));
  request = shell("touch $RESULTS/ran");
  request.tee = "4";
  EXPECT_THAT(refusal(request), StartsWith("--tee=4: must be 0 (none)"));
  request = shell("touch $RESULTS/ran");
  request.signals_to_handle = "TERM";
  EXPECT_THAT(refusal(request), StartsWith("--signals_to_handle=TERM: 'TERM' is not a signal"));
  request.signals_to_handle = "SIGTERM";
  request.command = {"no-such-program"};
  EXPECT_THAT(refusal(request), StartsWith("no-such-program: no such program in PATH or in "));
  EXPECT_THAT(told, IsEmpty());
  EXPECT_EQ(results.entries(), 0);
}

}  // namespace
}  // namespace narrowcast::launcher

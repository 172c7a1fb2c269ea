#include "trainer/launcher/posix/run_folder.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <optional>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Fate = RunFolder::Fate;

class RunFolderTest : public ::testing::Test {
 protected:
  std::string refusal_of(const std::filesystem::path& log_dir) const {
    return testing::error_message<c10::ValueError>([&] { RunFolder(log_dir, "run7", Fate::kKept, environment); });
  }

  const testing::TemporaryFolder parent;
  EnvironmentVariables environment = {{"TMPDIR", parent.path().string()}};
};

TEST_F(RunFolderTest, IsKeptInALogDirAndNamedAfterTheRun) {
  const std::filesystem::path logs = parent.path() / "logs";
  std::filesystem::path path;
  {
    const RunFolder folder(logs, "run7", Fate::kKept, environment);
    path = folder.path();
    EXPECT_EQ(path, logs / "run7");
    EXPECT_THAT(refusal_of(logs), HasSubstr("cannot be made: File exists"));
  }
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST_F(RunFolderTest, IsTheUsersAloneAndGoesIfItIsTemporary) {
  {
    const RunFolder folder("", "run7", Fate::kTemporary, environment);
    EXPECT_THAT(folder.path().string(), StartsWith(parent / "narrowcast-run.run7."));
    struct stat status {};
    ASSERT_EQ(stat(folder.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0700U);
    std::ofstream(folder.path() / "file") << "text";
  }
  EXPECT_EQ(parent.entries(), 0);
}

TEST_F(RunFolderTest, RefusesAPlaceItCannotUse) {
  EXPECT_THAT(refusal_of("/dev/null/logs"), HasSubstr("cannot be made: Not a directory"));
  environment["TMPDIR"] = "/no/such";
  EXPECT_EQ(refusal_of(""), "TMPDIR=/no/such: is no folder");
}

TEST_F(RunFolderTest, RemovesWhatKilledLaunchersLeft) {
  parent.write("narrowcast-run.killed.abcdef/launcher.lock", "");  // a file that nobody locks
  parent.write("narrowcast-run.killed.abcdef/attempt_0/0/error.json", "{}");
  const RunFolder folder("", "next", Fate::kTemporary, environment);
  EXPECT_EQ(parent.entries(), 1);
}

TEST_F(RunFolderTest, SparesWhatIsStillInUseAndWhatIsKept) {
  const RunFolder running("", "running", Fate::kTemporary, environment);
  { const RunFolder kept("", "kept", Fate::kKept, environment); }
  const RunFolder folder("", "next", Fate::kTemporary, environment);
  EXPECT_EQ(parent.entries(), 3);
  EXPECT_TRUE(std::filesystem::exists(running.path()));
}

TEST_F(RunFolderTest, SparesWhatIsNotALaunchers) {
  const testing::TemporaryFolder elsewhere;
  elsewhere.write("launcher.lock", "");
  parent.write("somebody.killed.abcdef/launcher.lock", "");
  std::filesystem::create_directory_symlink(elsewhere.path(), parent / "narrowcast-run.link.abcdef");
  std::filesystem::create_directories(parent.path() / "narrowcast-run.links.abcdef");
  std::filesystem::create_symlink(elsewhere / "launcher.lock", parent / "narrowcast-run.links.abcdef/launcher.lock");
  parent.write("narrowcast-run.file", "");
  const RunFolder folder("", "next", Fate::kTemporary, environment);
  EXPECT_EQ(parent.entries(), 5);
  EXPECT_EQ(elsewhere.entries(), 1);
}

}  // namespace
}  // namespace narrowcast::launcher

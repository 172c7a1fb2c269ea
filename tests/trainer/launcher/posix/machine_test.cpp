#include "trainer/launcher/posix/machine.h"

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

// Returns the error message of `action`.
std::string refusal(const std::function<void()>& action) { return testing::error_message<c10::ValueError>(action); }

Processors machine_with(int64_t cpus, int64_t gpus) {
  return {[cpus] { return cpus; }, [gpus] { return gpus; }};
}

TEST(ParseNproc, TakesNumbersAndKinds) {
  EXPECT_EQ(parse_nproc("1", machine_with(4, 0)), 1);
  EXPECT_EQ(parse_nproc("8", machine_with(4, 0)), 8);
  EXPECT_EQ(parse_nproc("cpu", machine_with(4, 2)), 4);
  EXPECT_EQ(parse_nproc("gpu", machine_with(4, 2)), 2);
  EXPECT_EQ(parse_nproc("auto", machine_with(4, 2)), 2);
  EXPECT_EQ(parse_nproc("auto", machine_with(4, 0)), 4);
}

TEST(ParseNproc, RefusesTheRest) {
  for (const char* const text : {"0", "-1", "", "two", "1.5", "2x", "4097", "99999999999999999999"}) {
    EXPECT_THAT(refusal([&] { parse_nproc(text, machine_with(4, 2)); }),
                StartsWith(std::string("--nproc_per_node=") + text + ": must be a number from 1"));
  }
  EXPECT_EQ(refusal([] { parse_nproc("gpu", machine_with(4, 0)); }),
            "--nproc_per_node=gpu: this machine has no usable GPU");
}

TEST(ParseNproc, AsksTheDriverOnlyIfItMatters) {
  const Processors untouchable{[]() -> int64_t { return 2; },
                               []() -> int64_t { throw std::logic_error("asked the driver"); }};
  EXPECT_EQ(parse_nproc("3", untouchable), 3);
  EXPECT_EQ(parse_nproc("cpu", untouchable), 2);
}

TEST(Processors, OfThisMachineIncludeACpu) { EXPECT_GE(Processors::of_this_machine().cpus(), 1); }

// Folders with programs.
class FindProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("path/folder/file", "");
    for (const char* const program :
         {"path/tool", "own/tool", "own/extra", "path/narrowcast-train", "own/narrowcast-train", "here"}) {
      make(program, std::filesystem::perms::owner_all);
    }
    make("path/notes", std::filesystem::perms::owner_read);
  }

  void make(const std::string& name, std::filesystem::perms permissions) const {
    std::filesystem::permissions(folder.write(name, "#!/bin/sh\n"), permissions);
  }
  std::string find(const std::string& name) const { return find_program(name, environment, root / "own"); }

  const testing::TemporaryFolder folder;
  const std::filesystem::path root = folder.path();
  EnvironmentVariables environment = {{"PATH", "/no/such:" + (root / "path").string()}};
};

TEST_F(FindProgramTest, LooksInPathThenBesideItself) {
  EXPECT_EQ(find("tool"), root / "path/tool");
  EXPECT_EQ(find("extra"), root / "own/extra");
}

TEST_F(FindProgramTest, LooksForOurOwnProgramsBesideItselfFirst) {
  EXPECT_EQ(find("narrowcast-train"), root / "own/narrowcast-train");
}

TEST_F(FindProgramTest, TakesPathsAsTheyAre) {
  EXPECT_EQ(find((root / "own/tool").string()), root / "own/tool");
  EXPECT_EQ(refusal([&] { find("./no/such"); }), "./no/such: no such program");
  EXPECT_EQ(refusal([&] { find((root / "path/notes").string()); }),
            (root / "path/notes").string() + ": not an executable file");
  EXPECT_EQ(refusal([&] { find(root.string()); }), root.string() + ": not an executable file");
}

TEST_F(FindProgramTest, RefusesWhatIsNotThere) {
  EXPECT_EQ(refusal([&] { find("no-such-tool"); }),
            "no-such-tool: no such program in PATH or in " + (root / "own").string());
  EXPECT_THAT(refusal([&] { find("notes"); }), HasSubstr("no such program"));
  EXPECT_THAT(refusal([&] { find("folder"); }), HasSubstr("no such program"));
  EXPECT_THAT(refusal([&] { find(""); }), HasSubstr("no such program"));
}

TEST_F(FindProgramTest, HintsAtAFileOfThisFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(root);
  EXPECT_THAT(refusal([&] { find("here"); }), HasSubstr("write ./here"));
  std::filesystem::current_path(before);
}

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
    EXPECT_THAT(refusal_of(logs), HasSubstr("cannot be created: File exists"));
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
  EXPECT_THAT(refusal_of("/dev/null/logs"), HasSubstr("cannot be created: Not a directory"));
  environment["TMPDIR"] = "/no/such";
  EXPECT_EQ(refusal_of(""), "TMPDIR=/no/such: is not a folder");
}

TEST_F(RunFolderTest, RemovesWhatKilledLaunchersLeft) {
  parent.write("narrowcast-run.killed.abcdef/launcher.lock", "");  // a file without a lock
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

#include "trainer/launcher/posix/machine.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message `action` is refused with.
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
  EXPECT_EQ(refusal([] { parse_nproc("gpu", machine_with(4, 0)); }), "--nproc_per_node=gpu: this machine shows no GPU");
}

TEST(ParseNproc, AsksTheDriverOnlyIfItMatters) {
  const Processors untouchable{[]() -> int64_t { return 2; },
                               []() -> int64_t { throw std::logic_error("asked the driver"); }};
  EXPECT_EQ(parse_nproc("3", untouchable), 3);
  EXPECT_EQ(parse_nproc("cpu", untouchable), 2);
}

TEST(Processors, OfThisMachineIncludeACpu) { EXPECT_GE(Processors::of_this_machine().cpus(), 1); }

// Folders with programs in them.
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

}  // namespace
}  // namespace narrowcast::launcher

#include "trainer/train/checkpoint/shared_folder.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::checkpoint {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::TemporaryFolder;

class SharedFolderTest : public ::testing::Test {
 protected:
  // What two ranks say when they prepare `folders[rank]`.
  std::vector<std::string> complaints(const std::vector<std::string>& folders, Existing existing) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      messages[rank] = error_message<c10::ValueError>([&] { prepare_folder(group, folders[rank], existing); });
    });
    return messages;
  }
  std::string complaint(const std::string& folder, Existing existing) {
    const auto messages = complaints({folder, folder}, existing);
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  }
  const TemporaryFolder folder;
};

TEST_F(SharedFolderTest, IsMadeAndLeftEmpty) {
  EXPECT_EQ(complaint(folder / "deep/new", Existing::kRefuse), "nothing was thrown");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "deep/new"));
}

TEST_F(SharedFolderTest, MustBeSharedByAllRanks) {
  const auto messages = complaints({folder / "a", folder / "b"}, Existing::kRefuse);
  EXPECT_THAT(messages[0], HasSubstr("a: rank 1: does not hold what rank 0 wrote there: all nodes must share"));
  EXPECT_THAT(messages[1], HasSubstr("b: rank 1: does not hold"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a"));
}

TEST_F(SharedFolderTest, ThatCannotBeMadeIsNamedOnAllRanks) {
  const std::string file = folder.write("file", "");
  EXPECT_THAT(complaint(file, Existing::kKeep), HasSubstr("checkpoint_dir " + file + ": rank 0: cannot be made"));
}

TEST_F(SharedFolderTest, CheckpointsAreRefusedKeptOrRemoved) {
  folder.write("step-00000020/x", "");
  folder.write("step-00000030.unfinished/x", "");
  folder.write("mine", "");
  const std::string path = folder.path();
  EXPECT_THAT(complaint(path, Existing::kRefuse), HasSubstr("the newest of step 20; --resume goes on from it"));
  EXPECT_EQ(complaint(path, Existing::kKeep), "nothing was thrown");
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_EQ(complaint(path, Existing::kRemove), "nothing was thrown");
  EXPECT_EQ(folder.entries(), 1);
}

}  // namespace
}  // namespace narrowcast::checkpoint

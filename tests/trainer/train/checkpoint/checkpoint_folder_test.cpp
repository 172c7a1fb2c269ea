#include "trainer/train/checkpoint/checkpoint_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/file_descriptor.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train/checkpoint/saved_content.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::checkpoint {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;

class CheckpointFolderTest : public testing::CheckpointTest {};

TEST_F(CheckpointFolderTest, ListsCheckpointsNewestFirst) {
  EXPECT_THAT(checkpoint_steps(path + "/none"), IsEmpty());
  for (const char* name : {"step-00000020/x", "step-00000003/x", "step-00000100.unfinished/x", "step-7/x", "step-x/x",
                           "step-123456789/x", "other/x"}) {
    folder.write(name, "");
  }
  folder.write("step-00000050", "a file, not a folder");
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(123456789, 20, 3));
}

TEST_F(CheckpointFolderTest, RemovesWhatIsUnfinishedOnly) {
  folder.write("step-00000020/x", "");
  folder.write("step-00000030.unfinished/deep/x", "");
  folder.write("notes.unfinished/x", "");
  EXPECT_THAT(remove_unfinished(path), ElementsAre(unfinished_path(path, 30)));
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(20));
}

TEST_F(CheckpointFolderTest, RemovesACheckpointEvenIfOneIsUnfinished) {
  folder.write("step-00000020/x", "");
  folder.write("step-00000020.unfinished/x", "");
  remove_checkpoint(path, 20);
  EXPECT_EQ(folder.entries(), 0);
  EXPECT_THAT(error_message<c10::ValueError>([&] { remove_checkpoint(path, 20); }), HasSubstr("step-00000020"));
}

// A launcher starts a job again after an OutputError, when the folder may be writable again.
TEST_F(CheckpointFolderTest, AFolderThatRefusesChangesForNowIsAnErrorOfOutput) {
  folder.write("step-00000020/x", "");
  folder.write("step-00000030.unfinished/x", "");
  const FileDescriptor unfinished(::open(unfinished_path(path, 30).c_str(), O_RDONLY | O_DIRECTORY));
  int flags = 0;
  if (::ioctl(unfinished.get(), FS_IOC_GETFLAGS, &flags) != 0) GTEST_SKIP() << "the file system has no such flags";
  int immutable = flags | FS_IMMUTABLE_FL;
  if (::ioctl(unfinished.get(), FS_IOC_SETFLAGS, &immutable) != 0) GTEST_SKIP() << "only root may set it";
  const std::string error = error_message<OutputError>([&] { remove_unfinished(path); });
  ::ioctl(unfinished.get(), FS_IOC_SETFLAGS, &flags);
  EXPECT_THAT(error, HasSubstr("step-00000030.unfinished: cannot be removed: Operation not permitted"));
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(20));
}

TEST_F(CheckpointFolderTest, ReadsEachFormerRankOnce) {
  write_checkpoints(3, {20});
  for (const int64_t world_size : {1, 2, 3, 5}) {
    std::vector<double> seen;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const ReadCheckpoint read = read_checkpoint(checkpoint_path(path, 20), rank, world_size);
      EXPECT_EQ(read.restored.step, 20);
      EXPECT_EQ(read.restored.former.world_size, 3);
      EXPECT_EQ(read.restored.training["note"], "step 20");
      EXPECT_EQ(read.restored.replica.at("weight")[1].item<float>(), 20);
      EXPECT_EQ(read.restored.former.own().at("own")[0].item<double>(), rank < 3 ? 2000 + rank : 2000);
      for (const TensorMap& former : read.restored.former.states) {
        seen.push_back(former.at("own")[0].item<double>());
      }
    }
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(2000, 2001, 2002)) << world_size;
  }
}

// Every file, cut at any place or with any bit flipped, is noticed before its content is used.
TEST_F(CheckpointFolderTest, EveryDamageIsNoticedAndNamed) {
  write_checkpoints(1, {20});
  for (const char* name : {"manifest.json", "replica.safetensors", "rank-00000.safetensors"}) {
    const std::string file = "step-00000020/" + std::string(name);
    const std::string whole = files::read_file(folder / file);
    const auto complaint = [&] {
      return error_message<CorruptInputError>([&] { read_checkpoint(checkpoint_path(path, 20), 0, 1); });
    };
    for (size_t length = 0; length + 2 < whole.size(); length += 7) {
      folder.write(file, whole.substr(0, length));
      ASSERT_THAT(complaint(), HasSubstr(folder / file)) << length;
    }
    std::string flipped = whole;
    flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 4);
    folder.write(file, flipped);
    EXPECT_THAT(complaint(), AnyOf(HasSubstr("SHA-256"), HasSubstr("not a JSON"), HasSubstr("not valid JSON"))) << name;
    std::filesystem::remove(folder / file);
    EXPECT_THAT(error_message<c10::ValueError>([&] { read_checkpoint(checkpoint_path(path, 20), 0, 1); }),
                HasSubstr(folder / file));
    folder.write(file, whole);
    EXPECT_NO_THROW(read_checkpoint(checkpoint_path(path, 20), 0, 1));
  }
}

// The checksum covers the bytes that are used: a file that is opened twice may change in between.
TEST_F(CheckpointFolderTest, EveryFileIsReadOnce) {
  write_checkpoints(2, {20});
  const FileDescriptor watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_TRUE(watch.is_open());
  ASSERT_GE(::inotify_add_watch(watch.get(), checkpoint_path(path, 20).c_str(), IN_OPEN), 0);
  read_checkpoint(checkpoint_path(path, 20), 0, 1);
  std::map<std::string, int64_t> opened;
  alignas(inotify_event) std::array<char, 4096> buffer = {};
  const ssize_t bytes = ::read(watch.get(), buffer.data(), buffer.size());
  for (ssize_t at = 0; at < bytes;) {
    const auto* const event = reinterpret_cast<const inotify_event*>(&buffer[static_cast<size_t>(at)]);
    ++opened[event->name];
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_EQ(opened, (std::map<std::string, int64_t>{{"manifest.json", 1},
                                                    {"replica.safetensors", 1},
                                                    {"rank-00000.safetensors", 1},
                                                    {"rank-00001.safetensors", 1}}));
}

class SharedFolderTest : public testing::CheckpointTest {
 protected:
  // Errors of two ranks that prepare `folders[rank]`.
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
};

TEST_F(SharedFolderTest, IsMadeAndLeftEmpty) {
  EXPECT_EQ(complaint(folder / "deep/new", Existing::kRefuse), "nothing was thrown");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "deep/new"));
}

TEST_F(SharedFolderTest, MustBeSharedByAllRanks) {
  const auto messages = complaints({folder / "a", folder / "b"}, Existing::kRefuse);
  EXPECT_THAT(messages[0], HasSubstr("a: rank 1: does not contain the file that rank 0 wrote: all nodes must share"));
  EXPECT_THAT(messages[1], HasSubstr("b: rank 1: does not contain the file"));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a"));
}

TEST_F(SharedFolderTest, ThatCannotBeMadeIsNamedOnAllRanks) {
  const std::string file = folder.write("file", "");
  EXPECT_THAT(complaint(file, Existing::kKeep), HasSubstr("checkpoint_dir " + file + ": rank 0: cannot be created"));
}

TEST_F(SharedFolderTest, CheckpointsAreRefusedKeptOrRemoved) {
  folder.write("step-00000020/x", "");
  folder.write("step-00000030.unfinished/x", "");
  folder.write("mine", "");
  EXPECT_THAT(complaint(path, Existing::kRefuse), HasSubstr("the newest of step 20; --resume resumes from it"));
  EXPECT_EQ(complaint(path, Existing::kKeep), "nothing was thrown");
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_EQ(complaint(path, Existing::kRemove), "nothing was thrown");
  EXPECT_EQ(folder.entries(), 1);
}

}  // namespace
}  // namespace narrowcast::checkpoint

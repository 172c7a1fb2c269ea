#include "trainer/train/checkpoint/checkpoint_writer.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/trainer/train/checkpoint/saved_content.h"
#include "tests/trainer/train/files/file_digest.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"

namespace narrowcast::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using testing::FileSizeLimit;
using testing::run_ranks;
using testing::small_content;

class CheckpointWriterTest : public testing::CheckpointTest {
 protected:
  void write(const std::vector<int64_t>& steps, int64_t keep, const std::vector<int64_t>& invalid = {}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      CheckpointWriter writer(group, {.folder = path, .keep = keep}, {}, invalid);
      for (const int64_t step : steps) {
        reports[rank] = writer.write(small_content(step, rank));
      }
    });
  }
  std::vector<WriteReport> reports = std::vector<WriteReport>(2);
};

TEST_F(CheckpointWriterTest, LeavesAFolderThatTheManifestDescribes) {
  write({20}, 2);
  EXPECT_EQ(folder.entries(), 1);
  const Manifest manifest = parse_manifest(files::read_file(folder / "step-00000020/manifest.json"), "manifest");
  EXPECT_EQ(manifest.step, 20);
  EXPECT_EQ(manifest.world_size, 2);
  int64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) {
    EXPECT_EQ(testing::digest_of_file(folder / "step-00000020/" + file.name), file.digest) << file.name;
    bytes += file.digest.bytes;
  }
  for (const WriteReport& report : reports) {
    EXPECT_EQ(report.path, folder / "step-00000020");
    EXPECT_EQ(report.bytes, bytes);
  }
}

TEST_F(CheckpointWriterTest, TellsWhichRunHasWritten) {
  write({10}, 2);
  run_ranks(1, [&](int64_t rank, const ProcessGroupPtr& group) {
    CheckpointWriter(group, {.folder = path, .keep = 2}, {.run_id = "run"}).write(small_content(20, rank));
  });
  EXPECT_TRUE(has_checkpoint_of(path, "run"));
  EXPECT_FALSE(has_checkpoint_of(path, "another"));
  EXPECT_FALSE(has_checkpoint_of(path + "/nowhere", "run"));
  folder.write("step-00000020/manifest.json", "{");
  EXPECT_FALSE(has_checkpoint_of(path, "run")) << "that of step 10 has no name";
}

// A training that has recovered in place comes to the step again.
TEST_F(CheckpointWriterTest, DoesNotWriteAgainWhatItHasWritten) {
  write({10}, 1);
  const int64_t bytes = reports[0].bytes;
  const std::string manifest = files::read_file(folder / "step-00000010/manifest.json");
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    CheckpointWriter writer(group, {.folder = path, .keep = 1, .written = 10}, {.run_id = "another"});
    const WriteReport again = writer.write(small_content(10, rank));
    EXPECT_EQ(again.path, folder / "step-00000010");
    EXPECT_EQ(again.bytes, bytes);
    EXPECT_EQ(files::read_file(folder / "step-00000010/manifest.json"), manifest);
    writer.write(small_content(20, rank));
  });
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(20));
}

TEST_F(CheckpointWriterTest, KeepsTheNewest) {
  write({10, 20, 30, 40}, 2);
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(40, 30));
  write({50}, 1);
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(50));
  write({60, 70, 80}, 0);
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(80, 70, 60, 50));
}

// An invalid checkpoint does not count towards `keep`, but stays until there is a new valid one.
TEST_F(CheckpointWriterTest, InvalidOnesAreReplacedAndDoNotCount) {
  write({10, 20, 30}, 0);
  write({25}, 2, {30, 20});
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(25, 10));
  write({30}, 0);
  folder.write("step-00000030/rank-00001.safetensors", "damaged");
  write({30}, 0, {30});
  EXPECT_NO_THROW(read_checkpoint(checkpoint_path(path, 30), 1, 2));
}

TEST_F(CheckpointWriterTest, ADiskThatIsFullLeavesTheOlderOnes) {
  write({10}, 1);
  std::vector<std::string> messages(2);
  {
    const FileSizeLimit limit(1 << 14);
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      CheckpointWriter writer(group, {.folder = path, .keep = 1}, {});
      Content content = small_content(20, rank);
      content.rank["large"] = at::zeros({rank * 10'000});
      messages[rank] = error_message<OutputError>([&] { writer.write(content); });
    });
  }
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "the checkpoint of step 20 cannot be written: rank 1: " +
                           folder / "step-00000020.unfinished/rank-00001.safetensors" +
                           ": cannot be written: File too large; earlier checkpoints are kept");
  }
  EXPECT_EQ(folder.entries(), 1);
  EXPECT_NO_THROW(read_checkpoint(checkpoint_path(path, 10), 0, 1));
}

// Another machine's job took over the folder while this one was silent, and is writing a checkpoint of the same step.
TEST_F(CheckpointWriterTest, TouchesNothingInAFolderThatAnotherJobHasTakenOver) {
  using namespace std::chrono_literals;
  write({10}, 1);
  const std::string others = folder.write("step-00000020.unfinished/replica.safetensors", "half");
  std::vector<std::string> messages(2);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    std::unique_ptr<FolderOwner> lost;
    std::unique_ptr<FolderOwner> other;
    if (rank == 0) {
      lost = std::make_unique<FolderOwner>(path, Writer{.host = "a", .machine = "a"}, OwnerTimes{1h, 1h});
      other = std::make_unique<FolderOwner>(path, Writer{.host = "b", .machine = "b", .pid = 7}, OwnerTimes{1h, 40ms});
    }
    CheckpointWriter writer(group, {.folder = path, .keep = 1}, {}, {}, std::move(lost));
    messages[rank] = error_message<OutputError>([&] { writer.write(small_content(20, rank)); });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, ::testing::StartsWith("the checkpoint of step 20 cannot be written: rank 0: " + path +
                                               ": has been taken over by process 7 on b"));
  }
  EXPECT_EQ(files::read_file(others), "half");
  EXPECT_THAT(checkpoint_steps(path), ElementsAre(10));
}

TEST_F(CheckpointWriterTest, RefusesANegativeNumberToKeep) {
  run_ranks(1, [&](int64_t, const ProcessGroupPtr& group) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { CheckpointWriter(group, {.folder = path, .keep = -1}, {}); }),
              "keep_checkpoints: must be at least 0, but is -1");
  });
}

}  // namespace
}  // namespace narrowcast::checkpoint

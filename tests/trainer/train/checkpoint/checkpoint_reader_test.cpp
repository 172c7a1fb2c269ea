#include "trainer/train/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/trainer/train/checkpoint/saved_content.h"

namespace narrowcast::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;

class CheckpointReaderTest : public testing::CheckpointTest {
 protected:
  // The checkpoints that two ranks find; stores rank 0's warnings.
  std::vector<FoundCheckpoint> find() {
    std::vector<FoundCheckpoint> found(2);
    warnings.clear();
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      found[rank] = find_newest(group, path, [&](const std::string& line) { warnings.push_back(line); });
    });
    return found;
  }
  void write(const std::vector<int64_t>& steps) const { write_checkpoints(2, steps); }

  std::vector<std::string> warnings;
};

TEST_F(CheckpointReaderTest, FindsTheNewest) {
  EXPECT_FALSE(find()[1].newest.has_value());
  write({10, 30, 20});
  const auto found = find();
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(found[rank].newest->restored.step, 30);
    EXPECT_EQ(found[rank].newest->restored.former.own().at("own")[0].item<double>(), 3000 + rank);
    EXPECT_THAT(found[rank].invalid_steps, IsEmpty());
  }
  EXPECT_THAT(warnings, IsEmpty());
}

// Only one rank reads the damaged file; all must take the older checkpoint.
TEST_F(CheckpointReaderTest, SkipsADamagedOneOnAllRanksWithOneWarning) {
  write({10, 20});
  const std::string file = folder / "step-00000020/rank-00001.safetensors";
  std::filesystem::resize_file(file, 17);
  const auto found = find();
  EXPECT_EQ(found[0].newest->restored.step, 10);
  EXPECT_EQ(found[1].newest->restored.step, 10);
  EXPECT_THAT(found[0].invalid_steps, ElementsAre(20));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0],
              HasSubstr("skips the checkpoint of step 20: rank 1: " + file + ": has 17 bytes, but must have"));
}

TEST_F(CheckpointReaderTest, SkipsOneWhoseManifestIsDeep) {
  write({10, 20});
  folder.write("step-00000020/manifest.json", std::string(60'000, '['));
  EXPECT_EQ(find()[1].newest->restored.step, 10);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("is JSON nested more than 64 deep"));
}

// A renamed folder is not the newest because of its name.
TEST_F(CheckpointReaderTest, SkipsOneOfAnotherStepThanItsName) {
  write({10, 20});
  std::filesystem::rename(folder / "step-00000010", folder / "step-00000030");
  const auto found = find();
  EXPECT_EQ(found[0].newest->restored.step, 20);
  EXPECT_THAT(found[1].invalid_steps, ElementsAre(30));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr(folder / "step-00000030/manifest.json" +
                                     ": is of step 10, but its folder is named as that of step 30"));
}

TEST_F(CheckpointReaderTest, TheOneThatIsNamedMayHaveAnotherNameButNotAnotherStep) {
  write({10});
  std::filesystem::rename(folder / "step-00000010", folder / "step-00000030");
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    for (const std::string name : {"step-00000030", "step-00000030/", "./step-00000030//"}) {
      EXPECT_THAT(error_message<CorruptInputError>([&] { read_on_all_ranks(group, folder / name); }),
                  HasSubstr("is of step 10, but its folder is named as that of step 30"));
    }
  });
  std::filesystem::rename(folder / "step-00000030", folder / "best");
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    EXPECT_EQ(read_on_all_ranks(group, folder / "best/").restored.step, 10);
  });
}

TEST_F(CheckpointReaderTest, SkipsOneWithAPipeForAFile) {
  write({10, 20});
  for (const char* const name : {"manifest.json", "replica.safetensors", "rank-00001.safetensors"}) {
    const std::string file = folder / ("step-00000020/" + std::string(name));
    std::filesystem::rename(file, folder / "aside");
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // has no writer: reading would wait for ever
    EXPECT_EQ(find()[0].newest->restored.step, 10);
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_THAT(warnings[0], HasSubstr(file + ": is not a regular file"));
    std::filesystem::rename(folder / "aside", file);
  }
  EXPECT_EQ(find()[0].newest->restored.step, 20);
}

TEST_F(CheckpointReaderTest, DoesNotStartAnewWhereAllAreDamaged) {
  write({10});
  std::filesystem::remove(folder / "step-00000010/replica.safetensors");
  EXPECT_THAT(error_message<CorruptInputError>([&] { find(); }),
              HasSubstr("none of its 1 checkpoints is valid; remove them to start a new training"));
  EXPECT_EQ(warnings.size(), 1U);
}

TEST_F(CheckpointReaderTest, ReadsTheOneThatIsNamed) {
  write({10, 20});
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const ReadCheckpoint read = read_on_all_ranks(group, checkpoint_path(path, 10));
    EXPECT_EQ(read.restored.former.own().at("own")[0].item<double>(), 1000 + rank);
    EXPECT_EQ(read.manifest.settings["hook"], "int8");
  });
}

TEST_F(CheckpointReaderTest, NamesWhatIsWrongWithTheOneThatIsNamed) {
  write({10});
  std::filesystem::remove(folder / "step-00000010/rank-00001.safetensors");
  run_ranks(2, [&](int64_t, const ProcessGroupPtr& group) {
    EXPECT_THAT(error_message<CorruptInputError>([&] { read_on_all_ranks(group, checkpoint_path(path, 10)); }),
                HasSubstr("rank 1: " + folder / "step-00000010/rank-00001.safetensors" + ": cannot be read"));
  });
}

}  // namespace
}  // namespace narrowcast::checkpoint

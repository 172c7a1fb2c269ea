// Kills a rank between any two steps of writing a checkpoint, and checks the folder's content.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/trainer/train/checkpoint/saved_content.h"
#include "trainer/base/process/failpoint.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/checkpoint_writer.h"

namespace narrowcast::checkpoint {
namespace {

using ::testing::Each;
using testing::fork_ranks;
using testing::kRankPassed;
using testing::small_content;

constexpr int kKilled = 128 + SIGKILL;

// The rank that dies and where, and the newest checkpoint's step afterwards: 10 existed before, 20 was being written.
struct Death {
  Failpoint point;
  int64_t nth = 1;
  int64_t rank = 0;
  int64_t newest = 10;
};

// A checkpoint of two ranks has three files. Rank 0 writes the replica and its rank file, and then the manifest. Before
// that, a test file is written to the folder, and the folder's owner is recorded.
const Death kDeaths[] = {
    {.point = Failpoint::kOwnerFileLocked},
    {.point = Failpoint::kOwnerRecorded},
    {.point = Failpoint::kFileWritten},
    {.point = Failpoint::kFileSynced},
    {.point = Failpoint::kFileRenamed},
    {.point = Failpoint::kCheckpointFolderMade},
    {.point = Failpoint::kFileWritten, .nth = 2},
    {.point = Failpoint::kFileRenamed, .nth = 2},
    {.point = Failpoint::kFileSynced, .nth = 3},
    {.point = Failpoint::kFileWritten, .rank = 1},
    {.point = Failpoint::kFileSynced, .rank = 1},
    {.point = Failpoint::kFileRenamed, .rank = 1},
    {.point = Failpoint::kCheckpointFilesWritten},
    {.point = Failpoint::kFileWritten, .nth = 4},
    {.point = Failpoint::kFileSynced, .nth = 4},
    {.point = Failpoint::kFileRenamed, .nth = 4},
    {.point = Failpoint::kCheckpointManifestWritten},
    {.point = Failpoint::kCheckpointRenamed, .newest = 20},
    {.point = Failpoint::kCheckpointSynced, .newest = 20},
    {.point = Failpoint::kCheckpointSetAside, .newest = 20},
    {.point = Failpoint::kCheckpointsRemoved, .newest = 20},
};

// Keeps one checkpoint.
void write_as_job(const ProcessGroupPtr& group, const std::string& folder, int64_t step) {
  auto owner = prepare_folder(group, folder, Existing::kKeep, {.job = "job"});
  CheckpointWriter writer(group, {.folder = folder, .keep = 1}, {}, {}, std::move(owner));
  writer.write(small_content(step, group->getRank()));
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    names.insert(std::filesystem::relative(entry.path(), folder));
  }
  return names;
}

// Resumes as the next attempt would: from that step, with all its state.
void expect_newest(const ProcessGroupPtr& group, const std::string& folder, int64_t step) {
  const auto owner = prepare_folder(group, folder, Existing::kKeep, {.job = "job"});
  const FoundCheckpoint found =
      find_newest(group, folder, [](const std::string& warning) { ADD_FAILURE() << warning; });
  ASSERT_TRUE(found.newest.has_value());
  const Content saved = small_content(step, group->getRank());
  EXPECT_EQ(found.newest->restored.step, step);
  EXPECT_TRUE(at::equal(found.newest->restored.replica.at("weight"), saved.replica.at("weight")));
  EXPECT_TRUE(at::equal(found.newest->restored.former.states.at(0).at("own"), saved.rank.at("own")));
}

class CheckpointDeathTest : public testing::CheckpointTest, public ::testing::WithParamInterface<Death> {};

TEST_P(CheckpointDeathTest, LosesNothing) {
  if (!has_failpoints()) GTEST_SKIP() << "this build has no failpoints (NARROWCAST_FAILPOINTS)";
  const Death& death = GetParam();
  ASSERT_THAT(fork_ranks(2, [&](int64_t, const ProcessGroupPtr& group) { write_as_job(group, path, 10); }),
              Each(kRankPassed));
  const std::vector<int> codes = fork_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    if (rank == death.rank) kill_at(death.point, death.nth);
    write_as_job(group, path, 20);
  });
  EXPECT_EQ(codes[static_cast<size_t>(death.rank)], kKilled);
  EXPECT_THAT(fork_ranks(2, [&](int64_t, const ProcessGroupPtr& group) { expect_newest(group, path, death.newest); }),
              Each(kRankPassed));
  EXPECT_THAT(fork_ranks(2, [&](int64_t, const ProcessGroupPtr& group) { write_as_job(group, path, 30); }),
              Each(kRankPassed));
  const std::string step = "step-00000030";
  const std::set<std::string> left{step, step + "/manifest.json", step + "/replica.safetensors",
                                   step + "/rank-00000.safetensors", step + "/rank-00001.safetensors"};
  EXPECT_EQ(names_in(path), left) << "what was left is gone";
}

INSTANTIATE_TEST_SUITE_P(Points, CheckpointDeathTest, ::testing::ValuesIn(kDeaths), [](const auto& info) {
  return "point_" + std::to_string(static_cast<int>(info.param.point)) + "_time_" + std::to_string(info.param.nth) +
         "_rank_" + std::to_string(info.param.rank);
});

// Every failpoint needs a death in kDeaths.
TEST(CheckpointDeaths, AreOfEveryPoint) {
  std::set<Failpoint> tried;
  for (const Death& death : kDeaths) tried.insert(death.point);
  for (int point = 0; point < static_cast<int>(Failpoint::kTicketDrawn); ++point) {
    EXPECT_TRUE(tried.contains(static_cast<Failpoint>(point))) << point;
  }
}

}  // namespace
}  // namespace narrowcast::checkpoint

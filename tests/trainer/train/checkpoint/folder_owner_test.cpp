#include "trainer/train/checkpoint/folder_owner.h"
#include "ops/common/file_descriptor.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::checkpoint {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr OwnerTimes kNeverSilent = {.beat = 1h, .silence = 1h};  // A test that waited for silence would not end.
constexpr OwnerTimes kSoonSilent = {.beat = 1h, .silence = 40ms};

Writer on(const std::string& machine, int64_t pid) {
  return {.job = "job-" + std::to_string(pid),
          .host = "host-of-" + machine,
          .machine = machine,
          .pid = pid,
          .since = "2026-01-02T03:04:05.678Z"};
}

std::string record(const Writer& writer, int64_t beat) {
  std::string text = nlohmann::json{{"job", writer.job}, {"host", writer.host},   {"machine", writer.machine},
                                    {"pid", writer.pid}, {"since", writer.since}, {"beat", beat}}
                         .dump();
  text.resize(512, ' ');
  return text;
}

class FolderOwnerTest : public ::testing::Test {
 protected:
  std::string path() const { return folder / FolderOwner::kFileName; }
  std::string error_of(const Writer& writer, const OwnerTimes& times) const {
    return error_message<c10::ValueError>([&] { const FolderOwner owner(name, writer, times); });
  }
  Writer owner() const {
    const auto found = read_owner(name);
    return found.has_value() ? found->writer : Writer{};
  }
  const testing::TemporaryFolder folder;
  const std::string name = folder.path().string();
};

TEST_F(FolderOwnerTest, LeavesNothingBehind) {
  for (int time = 0; time < 2; ++time) {
    const FolderOwner first(name, on("here", 1), kNeverSilent);
    EXPECT_EQ(owner(), on("here", 1));
    EXPECT_NO_THROW(first.check());
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(FolderOwnerTest, RefusesASecondOneOfTheMachineAtOnce) {
  const FolderOwner first(name, on("here", 1), kNeverSilent);
  EXPECT_THAT(error_of(on("here", 2), kNeverSilent),
              AllOf(HasSubstr("is in use by process 1 on host-of-here of the job 'job-1'"),
                    HasSubstr("since 2026-01-02T03:04:05.678Z"), HasSubstr("a separate folder")));
  EXPECT_EQ(owner(), on("here", 1));
  EXPECT_NO_THROW(first.check());
}

TEST_F(FolderOwnerTest, RefusesWhereTheOwnerHasNotSaidWhoItIs) {
  folder.write(FolderOwner::kFileName, "");
  const FileDescriptor file(::open(path().c_str(), O_RDWR));
  ASSERT_EQ(::flock(file.get(), LOCK_EX), 0);
  EXPECT_THAT(error_of(on("here", 2), kNeverSilent), HasSubstr("is in use by another process"));
}

// The lock is free, as after SIGKILL.
TEST_F(FolderOwnerTest, TakesOverAtOnceFromAnOwnerThatWasKilledOnThisMachine) {
  folder.write(FolderOwner::kFileName, record(on("here", 1), 5));
  const FolderOwner second(name, on("here", 2), kNeverSilent);
  EXPECT_EQ(owner(), on("here", 2));
}

TEST_F(FolderOwnerTest, TakesWhatNoOwnerWrote) {
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(R"({"job": 1})"), std::string(), std::string(100'000, 'x')}) {
    folder.write(FolderOwner::kFileName, text);
    const FolderOwner second(name, on("here", 2), kNeverSilent);
    EXPECT_EQ(owner(), on("here", 2)) << text.substr(0, 20);
  }
}

TEST_F(FolderOwnerTest, TakesOverFromAnotherMachineThatIsSilent) {
  folder.write(FolderOwner::kFileName, record(on("elsewhere", 1), 5));
  const FolderOwner second(name, on("here", 2), kSoonSilent);
  EXPECT_EQ(owner(), on("here", 2));
}

// Ranks that have recovered in place know it. A test that waited for silence would not end.
TEST_F(FolderOwnerTest, TakesOverAtOnceFromALostMachineOfTheSameJob) {
  Writer lost = on("elsewhere", 1);
  lost.job = "job-2";
  folder.write(FolderOwner::kFileName, record(lost, 5));
  const FolderOwner second(name, on("here", 2), {.beat = 1h, .silence = 1h, .own_job_is_lost = true});
  EXPECT_EQ(owner(), on("here", 2));
}

TEST_F(FolderOwnerTest, RefusesWhereAnotherMachinesOwnerCountsOn) {
  const FolderOwner first(name, on("elsewhere", 1), {.beat = 1ms, .silence = 1h});
  EXPECT_THAT(error_of(on("here", 2), {.beat = 1h, .silence = testing::kPatience}),
              HasSubstr("is in use by process 1 on host-of-elsewhere"));
  EXPECT_EQ(owner(), on("elsewhere", 1));
}

// A network file system that does not share locks.
TEST_F(FolderOwnerTest, RefusesWhereAnotherMachinesOwnerCountsOnWithoutALock) {
  folder.write(FolderOwner::kFileName, record(on("elsewhere", 1), 0));
  std::atomic<bool> done = false;
  std::thread other([&] {
    const FileDescriptor file(::open(path().c_str(), O_RDWR));
    for (int64_t beat = 1; !done; ++beat) {
      const std::string text = record(on("elsewhere", 1), beat);
      ASSERT_EQ(::pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    }
  });
  EXPECT_THAT(error_of(on("here", 2), {.beat = 1h, .silence = testing::kPatience}),
              HasSubstr("is in use by process 1 on host-of-elsewhere"));
  done = true;
  other.join();
}

// Its machine hung, or its process was stopped, and continued later.
TEST_F(FolderOwnerTest, TellsAnOwnerThatWasSilentThatItHasLostTheFolder) {
  {
    const FolderOwner first(name, on("elsewhere", 1), {.beat = 1h, .silence = 1h});
    const FolderOwner second(name, on("here", 2), kSoonSilent);
    EXPECT_THAT(error_message<OutputError>([&] { first.check(); }),
                AllOf(HasSubstr(name), HasSubstr("has been taken over by process 2 on host-of-here")));
    EXPECT_NO_THROW(second.check());
    EXPECT_THAT(error_of(on("here", 3), kNeverSilent), HasSubstr("is in use by process 2")) << "it has a lock";
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(FolderOwnerTest, AnOwnerThatLostTheFolderLeavesItAlone) {
  auto first = std::make_unique<FolderOwner>(name, on("elsewhere", 1), OwnerTimes{.beat = 1ms, .silence = 1h});
  folder.write(FolderOwner::kFileName, record(on("here", 2), 0));  // In a new file, as at a takeover.
  first.reset();
  EXPECT_EQ(owner(), on("here", 2));
}

// Another job may have had the folder, and have ended.
TEST_F(FolderOwnerTest, TellsAnOwnerWhoseFileIsGone) {
  const FolderOwner first(name, on("here", 1), kSoonSilent);
  std::filesystem::remove(path());
  EXPECT_THAT(error_message<OutputError>([&] { first.check(); }), HasSubstr(path() + ": is missing"));
}

// The file is half of a record, without locks, or a link that cannot be opened, like a file of a server that hangs.
TEST_F(FolderOwnerTest, WaitsForAFileThatCannotBeRead) {
  const std::string aside = path() + ".aside";
  for (const bool is_link : {true, false}) {
    for (const auto& [silence, comes_back] : {std::pair(OwnerTimes(kSoonSilent).silence, false),
                                              std::pair(std::chrono::milliseconds(testing::kPatience), true)}) {
      const FolderOwner first(name, on("here", 1), {.beat = 1h, .silence = silence});
      std::filesystem::rename(path(), aside);
      is_link ? std::filesystem::create_symlink(aside, path()) : static_cast<void>(folder.write("owner.json", "{"));
      std::thread server([&, comes_back = comes_back] {
        if (comes_back) std::filesystem::rename(aside, path());
      });
      if (comes_back) {
        EXPECT_NO_THROW(first.check());
      } else {
        EXPECT_THAT(error_message<OutputError>([&] { first.check(); }),
                    HasSubstr(path() + ": cannot be read; another job may have taken over the folder: "));
      }
      server.join();
      if (!comes_back) std::filesystem::rename(aside, path());
    }
  }
}

// The first may end before or after the second reads the file.
TEST_F(FolderOwnerTest, WaitsForAnEarlierOneOfTheSameJob) {
  Writer again = on("here", 2);
  again.job = on("here", 1).job;
  auto first = std::make_unique<FolderOwner>(name, on("here", 1), kNeverSilent);
  EXPECT_THAT(error_of(again, {.beat = 1h, .silence = 1h, .own_job = 40ms}), HasSubstr("is in use by process 1"));
  std::thread second([&] {
    const FolderOwner owner_of_second(name, again, {.beat = 1h, .silence = 1h, .own_job = testing::kPatience});
    EXPECT_EQ(owner(), again);
  });
  first.reset();
  second.join();
}

TEST_F(FolderOwnerTest, SaysWhyItCannotWrite) {
  std::filesystem::create_directory(path());
  EXPECT_THAT(error_of(on("here", 1), kNeverSilent), HasSubstr(path() + ": cannot be created"));
}

// A pipe without a reader or writer: opening would wait for ever.
TEST_F(FolderOwnerTest, APipeInThePlaceOfItsFileIsAnError) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(error_of(on("here", 1), kNeverSilent), path() + ": cannot be created: it is not a regular file");
  EXPECT_FALSE(read_owner(name).has_value());
  std::filesystem::remove(path());
  {
    const FolderOwner first(name, on("here", 1), {.beat = 1ms, .silence = 40ms});
    std::filesystem::remove(path());
    ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
    EXPECT_THAT(error_message<OutputError>([&] { first.check(); }), HasSubstr("it is not a regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(path())) << "its owner has ended, and left alone what it did not make";
}

TEST(ThisWriterTest, IsWhatCanBeReadAgainWhateverTheJobIsCalled) {
  const testing::TemporaryFolder folder;
  const Writer self = this_writer(std::string(100'000, '"') + "\x01\xff");
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_EQ(self.machine, this_writer("another").machine);
  const FolderOwner owner(folder.path().string(), self);
  ASSERT_TRUE(read_owner(folder.path().string()).has_value());
  EXPECT_EQ(read_owner(folder.path().string())->writer, self);
}

}  // namespace
}  // namespace narrowcast::checkpoint

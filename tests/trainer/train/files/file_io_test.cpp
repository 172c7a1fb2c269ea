#include "trainer/train/files/file_io.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using testing::error_message;
using testing::FileSizeLimit;
using testing::TemporaryFolder;

// The examples of FIPS 180-2, appendix B.
constexpr const char* kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kOfMillionA = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
constexpr const char* kOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

TEST(Sha256, GivesTheStandardsExamples) {
  EXPECT_EQ(Sha256().hex(), kOfNothing);
  Sha256 hash;
  hash.update("a");
  EXPECT_NE(hash.hex(), kOfAbc);
  hash.update("bc");
  EXPECT_EQ(hash.hex(), kOfAbc) << "in parts, and asked in between";
  Sha256 of_million;
  for (int i = 0; i < 1000; ++i) of_million.update(std::string(1000, 'a'));
  EXPECT_EQ(of_million.hex(), kOfMillionA);
}

TEST(NotWritten, TellsAWrongPathFromADiskThatRefuses) {
  errno = EACCES;
  EXPECT_EQ(error_message<c10::ValueError>([] { throw_not_written("a/b"); }),
            "a/b: cannot be written: Permission denied");
  errno = ENOSPC;
  EXPECT_EQ(error_message<OutputError>([] { throw_not_written("a/b", "cannot be created"); }),
            "a/b: cannot be created: No space left on device");
  errno = EROFS;
  EXPECT_THROW(throw_not_written("a/b"), OutputError);
}

TEST(AtomicFile, AppearsOnCommitOnly) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "file");
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(std::filesystem::exists(folder / "file"));
  file.commit();
  EXPECT_EQ(read_file(folder / "file"), "one two");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, ReplacesTheOldFileAsAWhole) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  AtomicFile file(path);
  file.write("new content");
  EXPECT_EQ(read_file(path), "old");
  file.commit();
  EXPECT_EQ(read_file(path), "new content");
}

TEST(AtomicFile, AppearsAsAWholeWithoutWaitingForTheDisk) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  AtomicFile file(path);
  file.write("new content");
  EXPECT_EQ(read_file(path), "old");
  file.commit_unsynced();
  EXPECT_EQ(read_file(path), "new content");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, WithoutCommitNothingIsLeft) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  { AtomicFile(path).write("half"); }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, HasThePermissionsOfANewFile) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "file");
  file.commit();
  struct stat ours = {};
  struct stat usual = {};
  ASSERT_EQ(::stat((folder / "file").c_str(), &ours), 0);
  ASSERT_EQ(::stat(folder.write("usual", "").c_str(), &usual), 0);
  EXPECT_EQ(ours.st_mode, usual.st_mode);
}

TEST(AtomicFile, PlacesThatCannotBeWrittenAreNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { AtomicFile("/nonexistent/x"); }),
            "/nonexistent/x: cannot be written: No such file or directory");
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "taken");
  EXPECT_EQ(error_message<c10::ValueError>([&] { AtomicFile file(folder / "taken"); }),
            folder / "taken" + ": cannot be written: Is a directory");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);  // Replacing a device would affect the whole machine.
  EXPECT_EQ(error_message<c10::ValueError>([&] { AtomicFile file(folder / "pipe"); }),
            folder / "pipe" + ": cannot be written: it is not a regular file");
  EXPECT_EQ(folder.entries(), 2) << "nothing unfinished stays";
}

TEST(AtomicFile, ItsPlaceIsCheckedBeforehand) {
  const TemporaryFolder folder;
  const auto complaint = [](const std::string& at) {
    return error_message<c10::ValueError>([&] { check_replaceable("report", at); });
  };
  EXPECT_EQ(complaint(folder / "new.html"), "nothing was thrown");
  EXPECT_EQ(folder.entries(), 0) << "nothing is left of it";
  EXPECT_EQ(complaint(folder.write("file", "old")), "nothing was thrown");
  EXPECT_EQ(read_file(folder / "file"), "old");
  EXPECT_EQ(complaint(folder / "none/x.html"),
            "report: " + folder / "none/x.html" + ": folder " + folder / "none" + " does not exist");
  EXPECT_EQ(complaint(folder / "file/x.html"),
            "report: " + folder / "file/x.html" + ": folder " + folder / "file" + " does not exist");
  EXPECT_EQ(complaint(folder.path().string()),
            "report: " + folder.path().string() + ": cannot be written: Is a directory");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(complaint(folder / "pipe"), ::testing::HasSubstr("pipe: cannot be written: it is not a regular file"));
}

// The superuser may write everywhere, except below something that is not a folder.
TEST(MakeFolder, ItsPlaceIsCheckedBeforehand) {
  const TemporaryFolder folder;
  folder.write("file", "");
  std::filesystem::create_symlink("nowhere", folder / "link");
  for (const char* const name : {"a/b", "a/b/", "a/../c", "."}) {
    EXPECT_NO_THROW(check_makeable("dir", folder / name)) << name;
  }
  EXPECT_NO_THROW(check_makeable("dir", "relative"));
  EXPECT_EQ(folder.entries(), 2);
  for (const char* const name : {"file", "file/a/b"}) {
    const std::string line = "dir: cannot create folder " + folder / name + ": ";
    EXPECT_EQ(error_message<c10::ValueError>([&] { check_makeable("dir", folder / name); }), line + "Not a directory");
    EXPECT_THAT(error_message<c10::ValueError>([&] { make_folder("dir", folder / name); }),
                ::testing::StartsWith(line));
  }
  make_folder("dir", folder / "a/b");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));
}

TEST(MakeFolder, ALinkToNowhereIsNamedWithItsTarget) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("nowhere", folder / "link");
  const std::string reason = folder / "link is a link to nowhere, which does not exist";
  for (const char* const name : {"link", "link/", "link/a/b"}) {
    const std::string line = "dir: cannot create folder " + folder / name + ": " + reason;
    EXPECT_EQ(error_message<c10::ValueError>([&] { check_makeable("dir", folder / name); }), line);
    EXPECT_EQ(error_message<c10::ValueError>([&] { make_folder("dir", folder / name); }), line);
    EXPECT_EQ(try_to_make_folder(folder / name), reason);
  }
  make_folder("dir", folder / "nowhere");
  EXPECT_EQ(try_to_make_folder(folder / "link/a"), "") << "a link to a folder";
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(try_to_make_folder(folder / "loop"), "Too many levels of symbolic links");
}

TEST(MakeFolder, MakesThoseAboveIt) {
  const TemporaryFolder folder;
  EXPECT_TRUE(makes_folder_of(folder / "a/b", folder / "a/b/x"));
  EXPECT_TRUE(makes_folder_of(folder / "a/b/", folder / "a/x"));
  EXPECT_TRUE(makes_folder_of("a/b", std::filesystem::absolute("a/x").string()));
  EXPECT_TRUE(makes_folder_of("a", "./x"));
  EXPECT_FALSE(makes_folder_of(folder / "a", folder / "a/b/x"));
  EXPECT_FALSE(makes_folder_of(folder / "a", folder / "ab/x"));
}

TEST(AtomicFile, FullDiskIsAnErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  const FileSizeLimit limit(1000);  // a write beyond it fails, as on a full disk
  const std::string message = error_message<OutputError>([&] {
    AtomicFile file(path);
    file.write(std::string(2000, 'x'));
    file.commit();
  });
  EXPECT_EQ(message, path + ": cannot be written: File too large");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.entries(), 1);
}

}  // namespace
}  // namespace narrowcast::files

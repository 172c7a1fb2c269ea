#include "trainer/base/files/open_file.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

TEST(ReadFile, GivesEveryByte) {
  const TemporaryFolder folder;
  const std::string content("a\0b\n\xff", 5);
  EXPECT_EQ(read_file(folder.write("file", content)), content);
  EXPECT_EQ(read_file(folder.write("empty", "")), "");
}

TEST(ReadFile, MissingFileIsNamed) {
  const std::string message = error_message<c10::ValueError>([] { read_file("/nonexistent/x"); });
  EXPECT_EQ(message, "/nonexistent/x: cannot be read: No such file or directory");
}

TEST(ReadFile, ThingsWithoutALengthAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_file(path); }), path + ": is a folder, but must be a file");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // has no writer: reading would wait for ever
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_file(pipe); }), pipe + ": is not a regular file");
}

TEST(ReadFile, LinksAreRefusedWhereAsked) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder.write("file", "content"), folder / "link");
  EXPECT_EQ(read_file(folder / "link"), "content");
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_file(folder / "link", {.links = Links::kRefuse}); }),
            folder / "link" + ": is a symbolic link, but must be a file");
  EXPECT_EQ(read_file(folder / "file", {.links = Links::kRefuse}), "content");
}

TEST(ReadFile, LengthIsLimitedWhereAsked) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "0123456789");
  EXPECT_EQ(read_file(path, {.most_bytes = 10}), "0123456789");
  EXPECT_EQ(error_message<CorruptInputError>([&] { read_file(path, {.most_bytes = 9}); }),
            path + ": has more than 9 bytes");
  EXPECT_EQ(error_message<CorruptInputError>([&] { read_file("/proc/self/maps", {.most_bytes = 9}); }),
            "/proc/self/maps: has more than 9 bytes");
}

TEST(ReadFile, OneThatIsTooLargeForTheMemoryIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "x");
  constexpr int64_t kBytes = int64_t{1} << 43;  // A sparse file; many file systems allow no longer files.
  ASSERT_EQ(::truncate(path.c_str(), kBytes), 0);
  EXPECT_THAT(error_message<c10::ValueError>([&] { read_file(path); }),
              ::testing::StartsWith(path + ": has 8796093022208 bytes, but this machine has only "));
}

// The kernel reports a size of 0 for them.
TEST(ReadFile, FilesThatAreMadeUpAsTheyAreReadAreNotEmpty) {
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);
  EXPECT_EQ(error_message<CorruptInputError>([&] { read_file("/proc/self/mem"); }),
            "/proc/self/mem: cannot be read at byte 0: Input/output error");
}

TEST(InputFile, ReadsAnyPartAndRefusesWhatIsPastTheEnd) {
  const TemporaryFolder folder;
  const InputFile file(folder.write("file", "0123456789"));
  EXPECT_EQ(file.size(), 10);
  std::string part(4, ' ');
  file.read(3, part.data(), 4);
  EXPECT_EQ(part, "3456");
  EXPECT_EQ(error_message<CorruptInputError>([&] { file.read(8, part.data(), 4); }),
            file.path() + ": ends at byte 10, 2 bytes early");
}

}  // namespace
}  // namespace narrowcast::files

#include "trainer/launcher/posix/filtered_log.h"
#include "ops/common/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::launcher {
namespace {

using testing::TemporaryFolder;

FileDescriptor open_to_write(const std::string& path) {
  return FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

TEST(FilteredLog, CopiesLinesThatHoldOneOfTheTexts) {
  const TemporaryFolder folder;
  FilteredLog log({.file = folder / "log", .texts = {"apple", "a,b"}}, open_to_write(folder / "log"));
  EXPECT_EQ(log.push("[0]: an apple\n[0]: a pear\n[0]: a,b\n", "[0]: "), 0);
  EXPECT_EQ(log.push("", "[0]: "), 0);
  EXPECT_EQ(log.push("[apple]: none\n[apple]: pineapple\n", "[apple]: "), 0);
  EXPECT_EQ(files::read_file(folder / "log"), "[0]: an apple\n[0]: a,b\n[apple]: pineapple\n");
}

TEST(FilteredLog, TellsOnceWhyItEnds) {
  FilteredLog log({.file = "/dev/full", .texts = {"a"}}, open_to_write("/dev/full"));
  EXPECT_EQ(log.push("b\n", ""), 0);
  EXPECT_EQ(log.push("a\n", ""), ENOSPC);
  EXPECT_EQ(log.push("a\n", ""), 0);
}

}  // namespace
}  // namespace narrowcast::launcher

#include "trainer/train/data/text_files.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::data {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;

// While it lives, this process can open `more` files only. What permissions forbid, the superuser may do all the same.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t more) {
    ::getrlimit(RLIMIT_NOFILE, &old_limit_);
    const int next = ::open("/dev/null", O_RDONLY);  // It gets the lowest number that is free.
    ::close(next);
    const rlimit limit = {.rlim_cur = static_cast<rlim_t>(next) + more, .rlim_max = old_limit_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OpenFileLimit() { ::setrlimit(RLIMIT_NOFILE, &old_limit_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit old_limit_ = {};
};

TEST(TextFiles, AFolderGivesItsTextFilesSortedByPath) {
  const TemporaryFolder folder;
  folder.write("b.txt", "");
  folder.write("sub/deeper/a.md", "");
  folder.write("a.cpp", "");
  folder.write("image.png", "");
  folder.write("no_suffix", "");
  folder.write("sub.txt/inner.h", "");  // a folder may have a suffix too
  EXPECT_EQ(list_text_files({folder.path()}),
            std::vector<std::string>(
                {folder / "a.cpp", folder / "b.txt", folder / "sub.txt/inner.h", folder / "sub/deeper/a.md"}));
}

TEST(TextFiles, HiddenNamesAreLeftOut) {
  const TemporaryFolder folder;
  folder.write("seen.txt", "");
  folder.write(".hidden.txt", "");
  folder.write(".git/config.txt", "");
  EXPECT_EQ(list_text_files({folder.path()}), std::vector<std::string>({folder / "seen.txt"}));
}

TEST(TextFiles, LinksToFoldersAreNotEntered) {
  const TemporaryFolder folder;
  folder.write("seen.txt", "");
  std::filesystem::create_directory_symlink(folder.path(), folder.path() / "circle");
  EXPECT_EQ(list_text_files({folder.path()}), std::vector<std::string>({folder / "seen.txt"}));
}

TEST(TextFiles, FilesStandForThemselvesInTheGivenOrder) {
  const TemporaryFolder folder;
  const std::string odd = folder.write("odd.bin", "");
  const std::string text = folder.write("sub/a.txt", "");
  EXPECT_EQ(list_text_files({odd, folder / "sub", odd}), std::vector<std::string>({odd, text, odd}));
}

TEST(TextFiles, WhatIsMissingIsNamed) {
  EXPECT_EQ(error_message<c10::ValueError>([] { list_text_files({"/nonexistent/x"}); }),
            "/nonexistent/x: does not exist");
  EXPECT_EQ(error_message<c10::ValueError>([] { list_text_files({}); }), "data: no file or folder is given");
  const TemporaryFolder folder;
  folder.write("image.png", "");
  const std::string path = folder.path();
  const std::string message = error_message<c10::ValueError>([&] { list_text_files({path}); });
  EXPECT_TRUE(message.starts_with(path + ": holds no text file (a file with one of the suffixes .c .cc")) << message;
}

TEST(TextFiles, AFolderThatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  folder.write("sub/deeper/a.txt", "");
  const std::vector<std::string> below = {folder.path(), folder / "sub", folder / "sub/deeper"};
  for (size_t readable = 0; readable < below.size(); ++readable) {  // Folders are open as long as those in them.
    const OpenFileLimit limit(readable);
    EXPECT_EQ(error_message<c10::ValueError>([&] { list_text_files({folder.path()}); }),
              below[readable] + ": cannot be read: Too many open files");
  }
}

TEST(TextFiles, SuffixesAreSortedAndHaveTheirDot) {
  EXPECT_TRUE(std::is_sorted(text_suffixes().begin(), text_suffixes().end()));
  for (const std::string_view suffix : text_suffixes()) {
    EXPECT_EQ(suffix[0], '.') << suffix;
  }
}

}  // namespace
}  // namespace narrowcast::data

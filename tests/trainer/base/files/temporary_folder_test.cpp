#include "trainer/base/files/temporary_folder.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ops/common/error_message.h"
#include "tests/support/error_message.h"
#include "tests/support/rank_process.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::files {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "narrowcast-test-files";

// Sets TMPDIR for its lifetime.
class Tmpdir {
 public:
  explicit Tmpdir(const std::string& folder) {
    if (const char* const old = std::getenv("TMPDIR")) old_ = old;
    ::setenv("TMPDIR", folder.c_str(), 1);
  }
  ~Tmpdir() {
    if (old_) {
      ::setenv("TMPDIR", old_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  Tmpdir(const Tmpdir&) = delete;
  Tmpdir& operator=(const Tmpdir&) = delete;

 private:
  std::optional<std::string> old_;
};

// A child process that returns one text and then lives until it is killed.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int pipe[2] = {-1, -1};
    EXPECT_EQ(::pipe(pipe), 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::string text = body();
      const bool is_written = ::write(pipe[1], text.data(), text.size()) == std::ssize(text);
      ::close(pipe[1]);
      while (is_written) ::pause();
      ::_exit(1);
    }
    ::close(pipe[1]);
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(pipe[0], buffer, sizeof(buffer))) > 0;) {
      text_.append(buffer, static_cast<size_t>(size));
    }
    ::close(pipe[0]);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& text() const { return text_; }

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    testing::exit_code_of(std::exchange(process_, -1));
  }

 private:
  pid_t process_ = -1;
  std::string text_;
};

// A child that has a folder with a file in it; its text is the folder's path. The destructor does not run.
Child owner() {
  return Child([] {
    const auto* const folder = new files::TemporaryFolder(kPrefix);
    const fs::path file = fs::path(folder->path()) / "below" / "file";
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "content";
    return folder->path();
  });
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

class TemporaryFolderTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder parent_;
  const Tmpdir tmpdir_{parent_.path().native()};
};

TEST_F(TemporaryFolderTest, IsWhereTmpdirSaysAndOnlyForThisUser) {
  const mode_t old_mask = ::umask(0);
  std::string path;
  {
    const files::TemporaryFolder folder(kPrefix);
    ::umask(old_mask);
    path = folder.path();
    EXPECT_EQ(fs::path(path).parent_path(), parent_.path());
    EXPECT_THAT(fs::path(path).filename().native(), ::testing::StartsWith(std::string(kPrefix) + "."));
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode, S_IFDIR | 0700U);
    fs::create_directories(fs::path(path) / "a" / "b");
    std::ofstream(fs::path(path) / "a" / "b" / "file") << "content";
    EXPECT_NO_THROW(folder.check_can_execute());
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(parent_.entries(), 0);
}

TEST_F(TemporaryFolderTest, IsRemovedByTheNextOneIfItsOwnerWasKilled) {
  Child killed = owner();
  Child living = owner();
  ASSERT_EQ(fs::path(killed.text()).parent_path(), parent_.path());
  killed.kill();
  ASSERT_TRUE(fs::exists(fs::path(killed.text()) / "below" / "file"));
  const files::TemporaryFolder folder(kPrefix);
  EXPECT_FALSE(fs::exists(killed.text()));
  EXPECT_TRUE(fs::exists(fs::path(living.text()) / "below" / "file"));
  EXPECT_TRUE(fs::exists(folder.path()));
  const files::TemporaryFolder second(kPrefix);
  EXPECT_TRUE(fs::exists(folder.path())) << "its owner is this process";
  EXPECT_EQ(parent_.entries(), 3);
}

TEST_F(TemporaryFolderTest, OnlyAbandonedFoldersOfItsPrefixAreRemoved) {
  const std::string prefix(kPrefix);
  const std::string own = prefix + "." + host_name();
  const std::string abandoned = parent_.write(own + ".AbCd12/file", "content");
  parent_.write(own + ".AbCd12/lock", "");
  const std::string kept[] = {parent_.write(prefix + "-other.AbCd12/file", "content"),
                              parent_.write(prefix + "AbCd12/file", "content"),
                              parent_.write(prefix + "/file", "content"),
                              parent_.write(prefix + ".my-results/file", "content"),
                              parent_.write(prefix + ".File12", "content"),
                              parent_.write("target/file", "content")};
  fs::create_directory_symlink(parent_ / "target", parent_ / prefix + ".Link12");
  {
    const files::TemporaryFolder folder(prefix);
    EXPECT_FALSE(fs::exists(fs::path(abandoned).parent_path()));
  }
  for (const std::string& path : kept) {
    EXPECT_TRUE(fs::exists(path)) << path;
  }
  EXPECT_TRUE(fs::is_symlink(parent_ / prefix + ".Link12"));
}

std::string error_with_tmpdir(const std::string& folder) {
  const Tmpdir tmpdir(folder);
  return testing::error_message<c10::ValueError>([] { files::TemporaryFolder made(kPrefix); });
}

TEST_F(TemporaryFolderTest, ErrorsNameTmpdirAndTheFolder) {
  EXPECT_EQ(error_with_tmpdir(parent_ / "missing"),
            "TMPDIR: cannot create a folder in " + parent_ / "missing" + ": No such file or directory");
  const std::string file = parent_.write("file", "content");
  EXPECT_EQ(error_with_tmpdir(file), "TMPDIR: cannot create a folder in " + file + ": Not a directory");
  EXPECT_THAT(error_with_tmpdir("/proc"), ::testing::StartsWith("TMPDIR: cannot create a folder in /proc: "));
}

TEST_F(TemporaryFolderTest, IsInTmpWithoutTmpdir) {
  const Tmpdir tmpdir("");
  EXPECT_EQ(fs::path(files::TemporaryFolder(kPrefix).path()).parent_path(), "/tmp");
}

// Root may write to every folder, so that a child takes the place of root.
TEST_F(TemporaryFolderTest, AFolderThatCannotBeWrittenIsAnError) {
  constexpr uid_t kNobody = 65534;
  fs::permissions(parent_.path(), fs::perms(0555));
  const Child child([&] {
    const bool is_root = ::geteuid() == 0;
    return is_root && ::seteuid(kNobody) != 0 ? "" : error_with_tmpdir(parent_.path());
  });
  fs::permissions(parent_.path(), fs::perms::owner_all);
  if (child.text().empty()) GTEST_SKIP() << "root cannot become another user";
  EXPECT_EQ(child.text(), "TMPDIR: cannot create a folder in " + parent_.path().native() + ": Permission denied");
}

// The error of a folder on a file system that is mounted with `noexec` in a name space of the child's own. Empty if
// this is not permitted.
std::string error_on_noexec(const std::string& mounted) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "";
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  if (::mount("none", mounted.c_str(), "tmpfs", MS_NOEXEC, nullptr) != 0) return "";
  const Tmpdir tmpdir(mounted);
  const files::TemporaryFolder folder(kPrefix);
  return failure_of([&] { folder.check_can_execute(); });
}

TEST_F(TemporaryFolderTest, AFolderWithoutExecutionIsAnError) {
  const Child child([&] { return error_on_noexec(parent_.path()); });
  if (child.text().empty()) GTEST_SKIP() << "no rights to mount a file system with noexec";
  EXPECT_EQ(child.text(), "TMPDIR: " + parent_.path().native() +
                              " is mounted noexec, so that compiled code cannot be loaded from there; set TMPDIR to "
                              "another folder");
}

}  // namespace
}  // namespace narrowcast::files

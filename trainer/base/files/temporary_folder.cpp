#include "trainer/base/files/temporary_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <narrowcast/worker_env.h>
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

namespace fs = std::filesystem;

// Opens a folder of this user and locks it. Negative if it is not one, or another process holds the lock.
FileDescriptor try_lock(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_locked = folder.is_open() && ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid() &&
                         ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
  return is_locked ? std::move(folder) : FileDescriptor();
}

constexpr std::string_view kPattern = ".XXXXXX";  // mkdtemp replaces the X.

bool is_made_for(const std::string& prefix, const std::string& name) {
  return name.size() == prefix.size() + kPattern.size() && name.starts_with(prefix + ".");
}

// Removes folders of that prefix whose owners have ended.
void remove_abandoned(const fs::path& parent, const std::string& prefix) {
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (!is_made_for(prefix, entry->path().filename().native())) continue;
    if (const FileDescriptor lock = try_lock(entry->path()); lock.is_open()) {
      std::error_code not_removed;
      fs::remove_all(entry->path(), not_removed);
    }
  }
}

// Another process may take a folder that is not locked yet for an abandoned one, and remove it.
bool is_there(const FileDescriptor& folder) {
  struct stat status {};
  return ::fstat(folder.get(), &status) == 0 && status.st_nlink > 0;
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& prefix) {
  const std::string given = text_or_empty(process_environment(), "TMPDIR");
  const fs::path parent = given.empty() ? "/tmp" : given;
  remove_abandoned(parent, prefix);
  while (!lock_.is_open() || !is_there(lock_)) {
    path_ = parent / prefix;
    path_ += kPattern;
    TORCH_CHECK_VALUE(::mkdtemp(path_.data()) != nullptr, "TMPDIR: cannot create a folder in ", parent.native(), ": ",
                      reason(errno));
    lock_ = try_lock(path_);
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void TemporaryFolder::check_can_execute() const {
  struct statvfs system {};
  const bool is_known = ::statvfs(path_.c_str(), &system) == 0;
  TORCH_CHECK_VALUE(
      !is_known || (system.f_flag & ST_NOEXEC) == 0, "TMPDIR: ", fs::path(path_).parent_path().native(),
      " is mounted noexec, so that compiled code cannot be loaded from there; set TMPDIR to another folder");
}

}  // namespace narrowcast::files

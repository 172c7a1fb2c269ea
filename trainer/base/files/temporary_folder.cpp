#include "trainer/base/files/temporary_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <narrowcast/worker_env.h>
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "lock";           // the file in the folder that its owner locks
constexpr std::string_view kRandom = "XXXXXX";  // mkdtemp replaces it by letters and digits
constexpr int64_t kMostTries = 100;

// The names of folders of this prefix and host, up to their random end.
std::string start_of_names(const std::string& prefix) {
  std::array<char, HOST_NAME_MAX + 1> host = {};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = prefix + "." + host.data() + ".";
  std::ranges::replace(name, '/', '_');
  return name;
}

bool is_made_here(std::string_view name, const std::string& start) {
  if (name.size() != start.size() + kRandom.size() || !name.starts_with(start)) return false;
  name.remove_prefix(start.size());
  return std::ranges::all_of(name, [](unsigned char character) { return std::isalnum(character) != 0; });
}

// Opens a folder of this user. Negative if it is not one.
FileDescriptor open_own_folder(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_own = folder.is_open() && ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid();
  return is_own ? std::move(folder) : FileDescriptor();
}

// Network file systems lock only files that are open for writing. errno tells why it is not locked.
bool lock(const FileDescriptor& file) {
  int result = -1;
  do {
    result = ::flock(file.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// Removes a folder with the locked file in it. A network file system keeps a removed file until it is closed.
void remove_folder(const std::string& path, FileDescriptor& locked) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
  locked.close();
  ::rmdir(path.c_str());
}

void remove_if_abandoned(const std::string& path) {
  const FileDescriptor folder = open_own_folder(path);
  if (!folder.is_open()) return;
  FileDescriptor file(::openat(folder.get(), kLock, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (file.is_open() && lock(file)) {
    remove_folder(path, file);
  } else if (!file.is_open() && errno == ENOENT) {
    ::rmdir(path.c_str());  // Its owner ended before it made the file, or will notice. A folder with files stays.
  }
}

// Removes folders whose owners have ended.
void remove_abandoned(const fs::path& parent, const std::string& start) {
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (is_made_here(entry->path().filename().native(), start)) remove_if_abandoned(entry->path());
  }
}

bool is_there(const FileDescriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

// Makes and locks the file in a new folder. Negative if another process has taken the folder, which was not locked yet,
// for an abandoned one. Throws c10::ValueError if files in `parent` cannot be locked.
FileDescriptor lock_new_folder(const std::string& path, const fs::path& parent) {
  FileDescriptor file(::open((path + "/" + kLock).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.is_open() && lock(file)) return is_there(file) ? std::move(file) : FileDescriptor();
  const int error = errno;
  const bool is_taken = error == (file.is_open() ? EWOULDBLOCK : ENOENT);
  if (!is_taken) remove_folder(path, file);
  TORCH_CHECK_VALUE(is_taken, "TMPDIR: ", parent.native(), ": cannot be locked: ", reason(error),
                    "; set TMPDIR to a local folder");
  return FileDescriptor();
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& prefix) {
  const std::string given = text_or_empty(process_environment(), "TMPDIR");
  const fs::path parent = given.empty() ? "/tmp" : given;
  const std::string start = start_of_names(prefix);
  remove_abandoned(parent, start);
  for (int64_t i = 0; i < kMostTries && !lock_.is_open(); ++i) {
    path_ = parent / start;
    path_ += kRandom;
    TORCH_CHECK_VALUE(::mkdtemp(path_.data()) != nullptr, "TMPDIR: cannot create a folder in ", parent.native(), ": ",
                      reason(errno));
    lock_ = lock_new_folder(path_, parent);
  }
  TORCH_CHECK_VALUE(lock_.is_open(), "TMPDIR: ", parent.native(),
                    ": cannot be locked: others remove new folders; set TMPDIR to a local folder");
}

TemporaryFolder::~TemporaryFolder() { remove_folder(path_, lock_); }

void TemporaryFolder::check_can_execute() const {
  struct statvfs system {};
  const bool is_known = ::statvfs(path_.c_str(), &system) == 0;
  TORCH_CHECK_VALUE(
      !is_known || (system.f_flag & ST_NOEXEC) == 0, "TMPDIR: ", fs::path(path_).parent_path().native(),
      " is mounted noexec, so that compiled code cannot be loaded from there; set TMPDIR to another folder");
}

}  // namespace narrowcast::files

#include "trainer/launcher/posix/run_folder.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <sstream>

namespace narrowcast::launcher {
namespace {

constexpr const char* kPrefix = "narrowcast-run.";
constexpr const char* kLock = "launcher.lock";

// Where the standard library looks for it, with an error that names the variable.
std::filesystem::path folder_for_temporary_files(const EnvironmentVariables& environment) {
  for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const std::string folder = text_or_empty(environment, name);
    if (!folder.empty()) {
      std::error_code ignored;
      TORCH_CHECK_VALUE(std::filesystem::is_directory(folder, ignored), name, "=", folder, ": is no folder");
      return std::filesystem::absolute(folder);
    }
  }
  return "/tmp";
}

std::filesystem::path make_in_log_dir(const std::filesystem::path& log_dir, const std::string& run_id) {
  const std::filesystem::path parent = std::filesystem::absolute(log_dir);
  const std::filesystem::path path = parent / run_id;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  // Not create_directories: a folder that is there already is somebody else's.
  TORCH_CHECK_VALUE(mkdir(path.c_str(), 0777) == 0, path.string(),
                    ": cannot be made: ", error ? error.message() : std::strerror(errno));
  return path;
}

std::filesystem::path make_among_temporary_files(const std::filesystem::path& parent, const std::string& run_id) {
  std::string path = (parent / (kPrefix + run_id + ".XXXXXX")).string();
  TORCH_CHECK_VALUE(mkdtemp(path.data()) != nullptr, path, ": cannot be made: ", std::strerror(errno));
  return path;
}

// A file in `folder` that is locked for as long as this process lives. It gets its name when it is locked, so that one
// with this name and without a lock was left behind.
files::FileDescriptor lock(const std::filesystem::path& folder) {
  const std::filesystem::path unlocked = folder / (std::string(kLock) + ".new");
  files::FileDescriptor file(open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.is_open() && flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    rename(unlocked.c_str(), (folder / kLock).c_str());
  }
  return file;
}

bool is_own(const files::FileDescriptor& file, mode_t type) {
  struct stat status {};
  return file.is_open() && fstat(file.get(), &status) == 0 && status.st_uid == geteuid() &&
         (status.st_mode & S_IFMT) == type;
}

// Removes `folder` if it is this user's, and the launcher that locked a file in it is gone. Follows no links.
void remove_if_left_behind(const std::filesystem::path& folder) {
  const files::FileDescriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!is_own(opened, S_IFDIR)) {
    return;
  }
  const files::FileDescriptor file(openat(opened.get(), kLock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (is_own(file, S_IFREG) && flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
}

void remove_leftovers(const std::filesystem::path& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kPrefix)) {
      remove_if_left_behind(entry->path());
    }
  }
}

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& log_dir, const std::string& run_id, Fate fate,
                     const EnvironmentVariables& environment)
    : temporary_(fate == Fate::kTemporary) {
  if (!log_dir.empty()) {
    path_ = make_in_log_dir(log_dir, run_id);
    return;
  }
  const std::filesystem::path parent = folder_for_temporary_files(environment);
  remove_leftovers(parent);
  path_ = make_among_temporary_files(parent, run_id);
  if (temporary_) {
    lock_ = lock(path_);
  }
}

RunFolder::~RunFolder() {
  if (temporary_) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

std::string new_run_id() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::ostringstream id;
  id << std::put_time(&local, "%Y%m%d-%H%M%S-") << getpid();
  return id.str();
}

}  // namespace narrowcast::launcher

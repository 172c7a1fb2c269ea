// A folder for files that this process needs for a moment.
#pragma once

#include <string>

#include "ops/common/file_descriptor.h"

namespace narrowcast::files {

// Removes the folder when it is destroyed. If the process is killed before, the next TemporaryFolder of the same prefix
// on this host does: the folder's owner holds a lock (flock) on a file in it, which the kernel releases.
class TemporaryFolder {
 public:
  // Makes the folder PREFIX.HOST.XXXXXX, which only this user may enter, in the folder that TMPDIR names, else in /tmp.
  // HOST is the host's name: hosts that share TMPDIR may not see each other's locks. Throws c10::ValueError naming
  // TMPDIR's folder and the reason if it cannot be made or locked.
  explicit TemporaryFolder(const std::string& prefix);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Throws c10::ValueError naming the folder if its file system is mounted with `noexec`: then no library in it can be
  // loaded.
  void check_can_execute() const;

 private:
  std::string path_;
  FileDescriptor lock_;
};

}  // namespace narrowcast::files

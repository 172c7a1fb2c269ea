// Files opened and read with errors that name the path.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "ops/common/file_descriptor.h"

namespace narrowcast::files {

// In bytes: Linux reads or writes at most this much per call.
inline constexpr int64_t kLargestTransfer = 0x7ffff000;

// What the system calls an error, an errno.
std::string reason(int error_number);

// What to do if the path's last part is a symbolic link.
enum class Links { kFollow, kRefuse };

// A regular file, open for reading. Every file that the programs read is opened here: none waits for the other end of a
// pipe, and none takes a folder or a device for an empty file.
class InputFile {
 public:
  // Throws c10::ValueError naming the path if there is no such file, it is a folder, a pipe, a device or another thing
  // that is no regular file, or a link that is refused, or it may not be read.
  explicit InputFile(const std::string& path, Links links = Links::kFollow);

  const std::string& path() const { return path_; }
  // Bytes, as of opening.
  int64_t size() const { return size_; }
  // Open as long as this object lasts.
  int descriptor() const { return descriptor_.get(); }

  // Fills `bytes` bytes from `offset` on. Throws CorruptInputError naming the path if the file
  // ends before that or cannot be read.
  void read(int64_t offset, void* destination, int64_t bytes) const;

  // The same for at most `bytes` bytes: returns how many there were, 0 at the end of the file.
  int64_t read_some(int64_t offset, void* destination, int64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor descriptor_;
  int64_t size_ = 0;
};

struct ReadOptions {
  Links links = Links::kFollow;
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
};

// The whole of a regular file, also of one that the kernel makes up as it is read (/proc) and that says it has no
// bytes. Errors as for InputFile, CorruptInputError naming path and limit if the file is longer than `most_bytes`, and
// c10::ValueError naming path and size if it is too large for the memory.
std::string read_file(const std::string& path, const ReadOptions& options = {});

}  // namespace narrowcast::files

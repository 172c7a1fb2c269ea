// Opens and reads files; errors name the path.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "ops/common/file_descriptor.h"

namespace narrowcast::files {

// The largest number of bytes that Linux reads or writes per call.
inline constexpr int64_t kLargestTransfer = 0x7ffff000;

// The system's text for an error, an errno.
std::string reason(int error_number);

// The beginning of a message about an error at that byte of a file: "PATH: byte N: ".
std::string at_byte(int64_t byte, const std::string& path);

// How to treat a symbolic link as the path's last part.
enum class Links { kFollow, kRefuse };

// A regular file, open for reading. The programs open every input file with this class, so none waits for the other end
// of a pipe, or reads a folder or a device as an empty file.
class InputFile {
 public:
  // Throws c10::ValueError naming the path if there is no such file, it may not be read, or it is not a regular file
  // but a folder, a pipe or a device. A link that `links` refuses throws it as well.
  explicit InputFile(const std::string& path, Links links = Links::kFollow);

  const std::string& path() const { return path_; }
  // Bytes when it was opened.
  int64_t size() const { return size_; }
  // Open as long as this object lasts.
  int descriptor() const { return descriptor_.get(); }

  // Fills `bytes` bytes from `offset` on. Throws CorruptInputError naming the path if the file ends before that or
  // cannot be read.
  void read(int64_t offset, void* destination, int64_t bytes) const;

  // Reads at most `bytes` bytes from `offset`, and returns their number, 0 at the end of the file. Throws as read()
  // does.
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

// All of a regular file. This includes a file of /proc, whose content the kernel creates during the read and whose
// stated size is 0. Errors are those of InputFile; also CorruptInputError naming path and limit if the file is longer
// than `most_bytes`, and c10::ValueError naming path and size if it is too large for the memory.
std::string read_file(const std::string& path, const ReadOptions& options = {});

}  // namespace narrowcast::files

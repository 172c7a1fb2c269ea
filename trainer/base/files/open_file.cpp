#include "trainer/base/files/open_file.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <system_error>

#include <narrowcast/errors.h>

namespace narrowcast::files {
namespace {

// Bytes to request beyond the file's stated length.
constexpr int64_t kProbe = 4096;

int open_for_reading(const std::string& path, Links links) {
  std::error_code ignored;  // A path whose status is unavailable cannot be opened either.
  TORCH_CHECK_VALUE(links == Links::kFollow || !std::filesystem::is_symlink(path, ignored), path,
                    ": is a symbolic link, but must be a file");
  // Without O_NONBLOCK, opening a pipe that has no writer would block forever.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (links == Links::kRefuse ? O_NOFOLLOW : 0);
  const int descriptor = ::open(path.c_str(), flags);
  TORCH_CHECK_VALUE(descriptor >= 0, path, ": cannot be read: ", reason(errno));
  return descriptor;
}

// The memory of this machine, used or not.
int64_t memory_bytes() { return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE); }

void check_length(const InputFile& file, int64_t bytes, int64_t most_bytes) {
  NARROWCAST_CHECK_INPUT(bytes <= most_bytes, file.path(), ": has more than ", most_bytes, " bytes");
}

std::string read_all(const InputFile& file, int64_t most_bytes) {
  int64_t done = file.size();
  std::string content(static_cast<size_t>(done + kProbe), '\0');
  file.read(0, content.data(), done);
  for (int64_t more = -1; more != 0; done += more) {
    content.resize(static_cast<size_t>(done + kProbe));
    more = file.read_some(done, content.data() + done, kProbe);
    check_length(file, done + more, most_bytes);
  }
  content.resize(static_cast<size_t>(done));
  return content;
}

}  // namespace

std::string at_byte(int64_t byte, const std::string& path) { return c10::str(path, ": byte ", byte, ": "); }

std::string reason(int error_number) { return std::generic_category().message(error_number); }

InputFile::InputFile(const std::string& path, Links links) : path_(path), descriptor_(open_for_reading(path, links)) {
  struct stat status = {};
  TORCH_CHECK_VALUE(::fstat(descriptor_.get(), &status) == 0, path, ": cannot be read: ", reason(errno));
  TORCH_CHECK_VALUE(!S_ISDIR(status.st_mode), path, ": is a folder, but must be a file");
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), path, ": is not a regular file");
  size_ = status.st_size;
}

int64_t InputFile::read_some(int64_t offset, void* destination, int64_t bytes) const {
  const auto wanted = static_cast<size_t>(std::min(bytes, kLargestTransfer));
  ssize_t received = -1;
  do {
    received = ::pread(descriptor_.get(), destination, wanted, offset);
  } while (received < 0 && errno == EINTR);
  NARROWCAST_CHECK_INPUT(received >= 0, path_, ": cannot be read at byte ", offset, ": ", reason(errno));
  return received;
}

void InputFile::read(int64_t offset, void* destination, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const int64_t received = read_some(offset + done, static_cast<char*>(destination) + done, bytes - done);
    NARROWCAST_CHECK_INPUT(received > 0, path_, ": ends at byte ", offset + done, ", ", bytes - done, " bytes early");
    done += received;
  }
}

std::string read_file(const std::string& path, const ReadOptions& options) {
  const InputFile file(path, options.links);
  check_length(file, file.size(), options.most_bytes);
  // Compared before allocating: the system may grant more memory than it has, and later kill the process that uses it.
  TORCH_CHECK_VALUE(file.size() < memory_bytes(), path, ": has ", file.size(), " bytes, but this machine has only ",
                    memory_bytes(), " bytes of memory");
  try {
    return read_all(file, options.most_bytes);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK_VALUE(false, path, ": not enough memory for its ", file.size(), " bytes");
  }
}

}  // namespace narrowcast::files

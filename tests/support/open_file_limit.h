// Makes a process run out of file descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace narrowcast::testing {

// The number of the next descriptor: the lowest free one.
inline rlim_t next_descriptor() {
  const int next = ::open("/dev/null", O_RDONLY);
  ::close(next);
  return static_cast<rlim_t>(next);
}

// During its lifetime, this process gets no new descriptor numbered `files` or higher.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &old_limit_);
    const rlimit limit = {.rlim_cur = files, .rlim_max = old_limit_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OpenFileLimit() { ::setrlimit(RLIMIT_NOFILE, &old_limit_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit old_limit_ = {};
};

}  // namespace narrowcast::testing

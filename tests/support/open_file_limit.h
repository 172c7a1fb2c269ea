// Lets a process run out of file descriptors.
#pragma once

#include <sys/resource.h>

namespace narrowcast::testing {

// While it lives, this process gets no new descriptor whose number is `files` or more.
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

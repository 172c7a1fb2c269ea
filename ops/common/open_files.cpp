#include "ops/common/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <climits>

namespace narrowcast::network {

int64_t open_file_limit() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  return static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, INT_MAX));  // A descriptor is an int.
}

// RLIMIT_NOFILE limits descriptors' numbers: inherited descriptors beyond it use up none of the numbers below it. So
// the free numbers are counted, which needs neither /proc nor a descriptor.
int64_t open_files_left(int64_t enough) {
  const int64_t limit = open_file_limit();
  int64_t left = 0;
  for (int64_t number = 0; number < limit && left < enough; ++number) {
    left += fcntl(static_cast<int>(number), F_GETFD) < 0 ? 1 : 0;
  }
  return left;
}

}  // namespace narrowcast::network

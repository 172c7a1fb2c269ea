#include "trainer/launcher/posix/pipe.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace narrowcast::launcher {

Pipe make_pipe() {
  int ends[2];
  TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe2: ", std::strerror(errno));
  return {files::FileDescriptor(ends[0]), files::FileDescriptor(ends[1])};
}

}  // namespace narrowcast::launcher

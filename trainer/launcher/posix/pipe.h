// The two ends of a pipe.
#pragma once

#include "trainer/base/files/file_descriptor.h"

namespace narrowcast::launcher {

struct Pipe {
  files::FileDescriptor read_end;
  files::FileDescriptor write_end;
};

// A pipe whose ends programs started later do not inherit. Throws c10::Error.
Pipe make_pipe();

}  // namespace narrowcast::launcher

// Signals that arrive at a descriptor instead of striking.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "trainer/base/files/open_file.h"

namespace narrowcast::launcher {

// The numbers of signals named like "SIGTERM,SIGINT", as torchrun's --signals_to_handle has them. Throws
// c10::ValueError naming `flag` and the name for one that does not exist or that a launcher cannot handle.
std::vector<int> parse_signals(const std::string& flag, const std::string& names);

// While it exists, `handled` signals come to a descriptor and do nothing else, unless the process was told to ignore
// them, and so does SIGCHLD. To be made before the process has a second thread. SIGPIPE is held back too, so that
// writing to a closed stream is an error and not the end.
class SignalDescriptor {
 public:
  explicit SignalDescriptor(const std::vector<int>& handled);
  SignalDescriptor(const SignalDescriptor&) = delete;
  SignalDescriptor& operator=(const SignalDescriptor&) = delete;
  ~SignalDescriptor();

  int get() const { return descriptor_.get(); }
  // A signal that arrived, 0 if none is left.
  int next() const;

 private:
  sigset_t before_;
  files::FileDescriptor descriptor_;
};

}  // namespace narrowcast::launcher

#include "trainer/base/process/process_limits.h"

#include <sys/resource.h>

#include <csignal>
#include <optional>

namespace narrowcast::program {
namespace {

// The settings before set_up_process().
struct Before {
  rlimit files;
  sighandler_t on_file_size;
};

std::optional<Before>& before() {
  static std::optional<Before> value;
  return value;
}

}  // namespace

void set_up_process() {
  if (before()) {
    return;
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  before() = Before{.files = files, .on_file_size = std::signal(SIGXFSZ, SIG_IGN)};
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);  // Needs no privilege. If it fails anyway, open() fails later.
}

void undo_process_setup() {
  if (before()) {
    setrlimit(RLIMIT_NOFILE, &before()->files);
    std::signal(SIGXFSZ, before()->on_file_size);
  }
}

}  // namespace narrowcast::program

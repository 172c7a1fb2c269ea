// narrowcast-run: starts the ranks of a job on this machine, together with its like on others.
// docs/reference/launcher.md tells users.
#include <c10/util/Logging.h>

#include <iostream>
#include <string>

#include <narrowcast/worker_env.h>
#include "ops/common/text.h"
#include "trainer/base/program/command_line.h"
#include "trainer/launcher/flags/launch_flags.h"
#include "trainer/launcher/job/launch.h"

namespace {

// Bytes of a line that the launcher says: more than one of a failed worker's last lines.
constexpr size_t kLongestLine = 16384;

}  // namespace

int main(int argc, char** argv) {
  namespace launcher = narrowcast::launcher;
  namespace program = narrowcast::program;
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch reports what it then throws; one line is enough.
  const program::Description about = launcher::launch_description();
  const auto say = [&](const std::string& text) {
    std::cerr << about.name + ": " + narrowcast::printable(text, kLongestLine) + "\n" << std::flush;
  };
  return program::run_main(about, argc, argv, [&](const program::CommandLine& line) {
    return launcher::launch(launcher::read_launch_request(line), narrowcast::process_environment(), say);
  });
}

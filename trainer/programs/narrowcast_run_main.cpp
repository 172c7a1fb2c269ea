// narrowcast-run: starts the ranks of a job on this machine, together with the launchers of other machines.
// docs/reference/launcher.md describes it for users.
#include <c10/util/Logging.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include <narrowcast/worker_env.h>
#include "ops/common/text.h"
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/flush_streams.h"
#include "trainer/launcher/flags/launch_flags.h"
#include "trainer/launcher/job/launch.h"

namespace {

// Bytes of a line that the launcher prints. A failed worker's last lines are shorter.
constexpr size_t kLongestLine = 16384;

}  // namespace

int main(int argc, char** argv) {
  namespace launcher = narrowcast::launcher;
  namespace program = narrowcast::program;
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch logs errors before it throws them; one line is enough.
  const program::Description about = launcher::launch_description();
  const auto say = [&](const std::string& text) {
    std::cerr << about.name + ": " + narrowcast::printable(text, kLongestLine) + "\n" << std::flush;
  };
  const int code = program::run_main(about, argc, argv, [&](const program::CommandLine& line) {
    return launcher::launch(launcher::read_launch_request(line), narrowcast::process_environment(), say);
  });
  program::flush_streams();
  std::_Exit(code);
}

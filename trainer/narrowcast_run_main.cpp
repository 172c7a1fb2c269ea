// narrowcast-run: starts the ranks of a job on this machine, together with its like on others. docs/launcher.md tells
// users.
#include <c10/util/Logging.h>

#include <iostream>

#include <narrowcast/worker_env.h>
#include "trainer/base/files/text.h"
#include "trainer/launcher/run_flags.h"

// Bytes of a line that the launcher says: more than one of a failed worker's last lines.
constexpr size_t kLongestLine = 16384;

int main(int argc, char** argv) {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch reports what it then throws; one line is enough.
  const narrowcast::program::Description description = narrowcast::run_description();
  return narrowcast::program::run_main(description, argc, argv, [&](const narrowcast::program::CommandLine& line) {
    return narrowcast::launcher::launch(
        narrowcast::read_launch_request(line), narrowcast::process_environment(), [&](const std::string& text) {
          std::cerr << description.name + ": " + narrowcast::printable(text, kLongestLine) + "\n" << std::flush;
        });
  });
}

// narrowcast-bench: measures each hook on this network.
#include <absl/strings/str_join.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/flush_streams.h"
#include "trainer/train/bench/run_bench.h"
#include "trainer/train/flags/bench_flags.h"
#include "trainer/train/flags/worker_flags.h"

namespace {

// Ends the process at once: other threads may wait for ever.
void end_for_silence(const std::string& why) {
  std::_Exit(
      narrowcast::program::report_failure("narrowcast-bench", {narrowcast::program::kPeerFailed, why},
                                          narrowcast::program::error_file_writer(narrowcast::worker_error_file())));
}

int run(const narrowcast::program::CommandLine& line, const narrowcast::BenchArguments& arguments) {
  if (arguments.list_hooks) {
    std::cout << absl::StrJoin(narrowcast::bench::measurable_hooks(), "\n") << std::endl;
    return narrowcast::program::kSuccess;
  }
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;  // LibTorch logs errors before it throws them; one line is enough.
  c10::initLogging();
  return narrowcast::bench::run_bench(narrowcast::read_bench_options(line, arguments),
                                      {.env = narrowcast::read_worker_env(arguments.place),
                                       .session = narrowcast::SessionEnv::from_environment(),
                                       .results = std::cout,
                                       .progress = std::cerr,
                                       .progress_is_terminal = false,
                                       .on_silence = end_for_silence});
}

}  // namespace

int main(int argc, char** argv) {
  narrowcast::BenchArguments arguments;
  const int code = narrowcast::program::run_main(
      narrowcast::bench_description(arguments), argc, argv,
      [&](const narrowcast::program::CommandLine& line) { return run(line, arguments); },
      narrowcast::program::error_file_writer(narrowcast::worker_error_file()));
  narrowcast::program::flush_streams();
  std::_Exit(code);
}

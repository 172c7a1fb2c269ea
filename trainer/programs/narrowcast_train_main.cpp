// narrowcast-train: one rank of a training.
#include <c10/util/Logging.h>
#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/base/program/flush_streams.h"
#include "trainer/train/flags/train_program.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/options/arguments.h"

namespace {

bool is_terminal(const narrowcast::SessionEnv& session) { return isatty(STDERR_FILENO) == 1 && session.term != "dumb"; }

// LibTorch reports on standard error what it then throws, so that one lost connection would be several reports. Only
// the program's own line is left; TORCH_CPP_LOG_LEVEL still asks for more.
void keep_libtorch_quiet() {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  c10::initLogging();
}

// Beside waits that nothing ends.
void end_for_silence(const std::string& why) {
  std::_Exit(
      narrowcast::program::report_failure("narrowcast-train", {narrowcast::program::kPeerFailed, why},
                                          narrowcast::program::error_file_writer(narrowcast::worker_error_file())));
}

// A launcher sends SIGQUIT to a rank that hangs, before it kills it: the stack shows where. Not all of it is safe in a
// signal handler, but this process ends anyway.
void end_with_stack(int signal) {
  constexpr std::string_view kIntroduction = "narrowcast-train: SIGQUIT, the stack of this rank:\n";
  std::array<void*, 64> frames{};
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kIntroduction.data(), kIntroduction.size());
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
  std::_Exit(128 + signal);
}

void show_stack_when_hung(const narrowcast::WorkerEnv& env) {
  if (env.recovers_in_place) {
    std::array<void*, 1> frame{};
    backtrace(frame.data(), static_cast<int>(frame.size()));  // Loads its library now.
    std::signal(SIGQUIT, end_with_stack);
  }
}

// In a signal handler.
void end_for_signal(int signal) { std::_Exit(128 + signal); }

int run(const narrowcast::Given& given) {
  keep_libtorch_quiet();
  const auto session = narrowcast::SessionEnv::from_environment();
  const narrowcast::job::JobContext context = {.env = narrowcast::read_worker_env(given.arguments.place),
                                               .session = session,
                                               .results = std::cout,
                                               .progress = std::cerr,
                                               .progress_is_terminal = is_terminal(session),
                                               .on_silence = end_for_silence,
                                               .end_for_signal = end_for_signal};
  show_stack_when_hung(context.env);
  return narrowcast::run_train(given, context);
}

}  // namespace

int main(int argc, char** argv) {
  narrowcast::options::Arguments arguments;
  const int code = narrowcast::program::run_main(
      narrowcast::train_description(arguments), argc, argv,
      [&](const narrowcast::program::CommandLine& line) {
        return run({line, arguments});
      },
      narrowcast::program::error_file_writer(narrowcast::worker_error_file()));
  narrowcast::program::flush_streams();
  std::_Exit(code);
}

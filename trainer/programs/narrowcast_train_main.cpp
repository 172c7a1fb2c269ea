// narrowcast-train: one rank of a training.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/flags/train_flags.h"
#include "trainer/train/flags/worker_flags.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/options/arguments.h"
#include "trainer/train/reporting/report.h"

namespace {

bool is_terminal(const narrowcast::SessionEnv& session) { return isatty(STDERR_FILENO) == 1 && session.term != "dumb"; }

// LibTorch reports on standard error what it then throws, so that one lost connection would be several reports. Only
// the program's own line is left; TORCH_CPP_LOG_LEVEL still asks for more.
void keep_libtorch_quiet() {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  c10::initLogging();
}

// A page of trainings that others have left.
int compare(const narrowcast::Comparison& comparison, const narrowcast::WorkerEnv& env) {
  narrowcast::reporting::check_page_name(comparison.report);
  if (env.rank == 0) {
    narrowcast::files::check_replaceable("report", comparison.report);
    narrowcast::reporting::write_report(comparison.report,
                                        narrowcast::reporting::trainings_document(comparison.trainings));
  }
  return narrowcast::program::kSuccess;
}

// Beside waits that nothing ends.
void end_for_silence(const std::string& why) {
  std::_Exit(
      narrowcast::program::report_failure("narrowcast-train", {narrowcast::program::kPeerFailed, why},
                                          narrowcast::program::error_file_writer(narrowcast::worker_error_file())));
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
  if (const auto comparison = narrowcast::read_comparison(given)) {
    return compare(*comparison, context.env);
  }
  if (const auto evaluation = narrowcast::read_evaluation_job(given)) {
    return narrowcast::inference::run_evaluation_job(*evaluation, context);
  }
  return narrowcast::job::run_job(narrowcast::read_train_job(given, context.env), context);
}

}  // namespace

int main(int argc, char** argv) {
  narrowcast::options::Arguments arguments;
  return narrowcast::program::run_main(
      narrowcast::train_description(arguments), argc, argv,
      [&](const narrowcast::program::CommandLine& line) {
        return run({line, arguments});
      },
      narrowcast::program::error_file_writer(narrowcast::worker_error_file()));
}

// narrowcast-run: starts the ranks of a job on this machine. docs/launcher.md tells users.
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <iostream>

#include "trainer/launcher/launch.h"
#include "trainer/program/command_line.h"
#include "trainer/program/exit_code.h"
#include "trainer/worker_env.h"

ABSL_FLAG(std::string, nproc_per_node, "1",
          "How many workers to start: a number, cpu (one for each CPU this process may use), gpu (one for each GPU) or "
          "auto (gpu if there is one, else cpu).");
ABSL_FLAG(bool, standalone, false,
          "The job is on this machine alone: rank 0 serves on a free port of 127.0.0.1. The same as giving neither "
          "--master_addr nor --master_port, which it excludes.");
ABSL_FLAG(std::string, master_addr, "127.0.0.1", "The address of this machine where rank 0 serves the job's store.");
ABSL_FLAG(int32_t, master_port, 0, "The TCP port there; 0 is any free one.");
ABSL_FLAG(std::string, log_dir, "",
          "Send each rank's output to DIR/RUN/attempt_0/RANK/stdout.log and stderr.log instead of showing it.");
ABSL_FLAG(bool, prefix, true,
          "Show the workers' output line by line, each line after its rank: \"[1]: text\". With --noprefix the workers "
          "write to the launcher's streams themselves.");
ABSL_FLAG(double, shutdown_timeout, 3.0,
          "Seconds from telling the workers to end until SIGKILL ends those that have not.");

namespace narrowcast {
namespace {

program::Description description() {
  program::Description run;
  run.name = "narrowcast-run";
  run.version = NARROWCAST_VERSION;
  run.summary =
      "starts one process per rank on this machine, shows what they write, and ends them all when one fails. Arguments "
      "after the program's name are the program's own.";
  run.usage = "narrowcast-run [flags] PROGRAM [arguments]";
  run.groups = {{"Workers", {"nproc_per_node", "shutdown_timeout"}},
                {"How they find each other", {"standalone", "master_addr", "master_port"}},
                {"Output", {"prefix", "log_dir"}}};
  run.examples = {
      {"two ranks of the trainer", "narrowcast-run --nproc_per_node=2 narrowcast-train --model=char_gpt --hook=int8"},
      {"a rank for each GPU, their output in files",
       "narrowcast-run --nproc-per-node=gpu --log_dir=logs ./my_trainer"}};
  run.exit_codes = {
      {program::kSuccess, "every rank succeeded"},
      {program::kWrongUse, "wrong use: a flag, a program that cannot be executed, a port in use; no rank did anything"},
      {program::kInternalError, "an internal error: please report it"}};
  run.exit_note =
      "Otherwise that of the rank that failed first: its own, or 128 + N if signal N ended it. Also 128 + N if signal "
      "N stopped the job.";
  run.positionals = program::Positionals::kEndTheFlags;
  return run;
}

launcher::LaunchRequest request(const program::CommandLine& line) {
  launcher::LaunchRequest wanted;
  TORCH_CHECK_VALUE(!line.rest().empty(), "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
  TORCH_CHECK_VALUE(!absl::GetFlag(FLAGS_standalone) || !(line.given("master_addr") || line.given("master_port")),
                    "--standalone chooses address and port: give it, or --master_addr and --master_port");
  TORCH_CHECK_VALUE(absl::GetFlag(FLAGS_log_dir).empty() || !line.given("prefix"),
                    "--prefix and --log_dir exclude each other: output in files is never prefixed");
  TORCH_CHECK_VALUE(!line.given("log_dir") || !absl::GetFlag(FLAGS_log_dir).empty(), "--log_dir= names no folder");
  wanted.command = line.rest();
  wanted.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  wanted.master_addr = absl::GetFlag(FLAGS_master_addr);
  wanted.master_port = absl::GetFlag(FLAGS_master_port);
  wanted.log_dir = absl::GetFlag(FLAGS_log_dir);
  wanted.prefix = absl::GetFlag(FLAGS_prefix);
  const double timeout = absl::GetFlag(FLAGS_shutdown_timeout);
  TORCH_CHECK_VALUE(timeout >= 0 && timeout <= 86400, "--shutdown_timeout=", timeout, ": must be from 0 to 86400 s");
  wanted.shutdown_timeout = std::chrono::milliseconds(std::llround(timeout * 1000));
  return wanted;
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  const narrowcast::program::Description description = narrowcast::description();
  return narrowcast::program::run_main(description, argc, argv, [&](const narrowcast::program::CommandLine& line) {
    return narrowcast::launcher::launch(narrowcast::request(line), narrowcast::process_environment(),
                                        [&](const std::string& text) {
                                          std::cerr << description.name + ": " + text + "\n" << std::flush;
                                        });
  });
}

#include "trainer/launcher/launch.h"

#include <ctime>
#include <iomanip>
#include <sstream>

#include "trainer/launcher/failure_report.h"
#include "trainer/launcher/launch_plan.h"
#include "trainer/launcher/posix/child_process.h"
#include "trainer/launcher/posix/machine.h"
#include "trainer/launcher/posix/process_runner.h"
#include "trainer/launcher/supervisor.h"

namespace narrowcast::launcher {
namespace {

using Tell = std::function<void(const std::string&)>;

std::string local_time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::ostringstream text;
  text << std::put_time(&local, "%Y-%m-%d %H:%M:%S");
  return text.str();
}

LaunchOptions options_for(const LaunchRequest& request, const EnvironmentVariables& environment,
                          const std::filesystem::path& run_folder) {
  LaunchOptions options;
  options.command = request.command;
  options.command.front() = find_program(request.command.front(), environment, own_folder());
  options.nproc_per_node = parse_nproc(request.nproc_per_node, Processors::of_this_machine());
  options.run_folder = run_folder;
  options.output_to_files = !request.log_dir.empty();
  return options;
}

void announce(const LaunchOptions& options, const EnvironmentVariables& environment, const Tell& tell) {
  if (limits_threads(options, environment)) {
    tell("OMP_NUM_THREADS is not set: each worker gets 1 thread; set it for more");
  }
  if (options.output_to_files) {
    tell("output goes to " + (options.run_folder / "attempt_0" / "RANK").string() + "/stdout.log and stderr.log");
  }
}

}  // namespace

int launch(const LaunchRequest& request, const EnvironmentVariables& environment, const Tell& tell) {
  open_missing_streams();
  ProcessRunner runner({.prefix = request.prefix});  // Early: from here on signals are ours.
  check_own_address(request.master_addr);
  const PortReservation port(request.master_port);
  Rendezvous rendezvous{.master_addr = request.master_addr, .master_port = port.port(), .run_id = new_run_id()};
  const RunFolder folder(request.log_dir, rendezvous.run_id);
  const LaunchOptions options = options_for(request, environment, folder.path());
  rendezvous.world_size = options.nproc_per_node;
  const std::vector<WorkerCommand> workers = plan_workers(options, rendezvous, environment);

  announce(options, environment, tell);
  const auto started = std::chrono::system_clock::now();
  const Outcome outcome = supervise(runner, workers, {.shutdown_timeout = request.shutdown_timeout});
  if (outcome.interrupted_by != 0) {
    tell(interruption_report(outcome));
  } else if (outcome.failure) {
    const WorkerCommand& failed = workers[static_cast<size_t>(outcome.failure->rank - rendezvous.first_rank)];
    const FailureDetails details{local_time(started + outcome.failure->after), failed.error_file, failed.log_file,
                                 runner.last_error_lines(failed.rank)};
    for (const std::string& line : failure_report(outcome, details)) {
      tell(line);
    }
  } else if (outcome.left_behind) {
    tell("every rank succeeded, but not all processes they left could be ended, even by SIGKILL");
  }
  return outcome.exit_code();
}

}  // namespace narrowcast::launcher

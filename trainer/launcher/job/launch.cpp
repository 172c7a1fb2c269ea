#include "trainer/launcher/job/launch.h"

#include <c10/util/Exception.h>

#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "trainer/base/network/addresses.h"
#include "trainer/base/process/process_limits.h"
#include "trainer/base/program/failure.h"
#include "trainer/launcher/group/verdict.h"
#include "trainer/launcher/job/agent.h"
#include "trainer/launcher/job/launch_plan.h"
#include "trainer/launcher/posix/child_process.h"
#include "trainer/launcher/posix/machine.h"
#include "trainer/launcher/posix/process_runner.h"
#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {
namespace {

using Tell = std::function<void(const std::string&)>;

OutputChoices output_choices(const LaunchRequest& request) {
  return {.redirects = StreamChoices::parse("--redirects", request.redirects),
          .tee = StreamChoices::parse("--tee", request.tee),
          .shown_ranks = parse_local_ranks("--local_ranks_filter", request.local_ranks_filter),
          .output_filters = request.output_filters,
          .error_filters = request.error_filters,
          .run_folder = {}};
}

// Returns the processors of each worker. GPUs are only queried if they matter, because the driver may take a second to
// answer.
std::vector<std::vector<int64_t>> processors_for(NumaBinding binding, int64_t workers) {
  if (binding == NumaBinding::kNone) {
    return {};
  }
  constexpr const char* kSys = "/sys";
  return bind_workers(binding, workers,
                      {.usable = read_processors(kSys, usable_processors()),
                       .nodes_of_gpus = read_nodes_of_devices(kSys, pci_addresses_of_gpus())});
}

LaunchOptions options_for(const LaunchRequest& request, const EnvironmentVariables& environment) {
  LaunchOptions options;
  options.command = request.command;
  options.command.front() = find_program(request.command.front(), environment, own_folder());
  options.nproc_per_node = parse_nproc(request.nproc_per_node, Processors::of_this_machine());
  options.role = request.role;
  options.signals_to_handle = request.signals_to_handle;
  options.output = output_choices(request);
  check_local_ranks(options.output, options.nproc_per_node);
  options.line_prefix = request.line_prefix;
  options.host = host_name();
  options.virtual_local_rank = request.virtual_local_rank;
  options.in_place =
      recovers_in_place(request.recovery, request.group.max_restarts, options.command.front(), own_folder());
  options.processors = processors_for(request.numa_binding, options.nproc_per_node);
  check_workers(options, environment);
  return options;
}

// Enters a private network if the job gets one. Must run before there are other threads: a process with several threads
// cannot leave its user namespace.
void isolate(const LaunchRequest& request, const EnvironmentVariables& environment, const Tell& tell) {
  if (request.simulated) {
    const std::string why = enter_private_network();
    TORCH_CHECK_VALUE(why.empty(), "--simulate_gbit=", request.simulated->gbit,
                      ": this process cannot get a private network: ", why);
    return;
  }
  const bool is_asked = request.isolation == Isolation::kOn;
  if (request.isolation == Isolation::kOff || request.group.nodes.several()) {
    TORCH_CHECK_VALUE(!is_asked, "--isolate=on is for one node, but --nnodes=", request.group.nodes.most);
    return;
  }
  std::vector<std::string> command = request.command;
  command.front() = find_program(command.front(), environment, own_folder());
  const GroupRequest fresh;
  const bool is_local = request.group.endpoint.host == fresh.endpoint.host && request.group.endpoint.port == 0;
  if (!is_asked && !(is_local && does_without_network(command, environment, own_folder()))) {
    return;
  }
  TORCH_CHECK_VALUE(network::names_loopback(request.group.endpoint.host), "--isolate=on leaves only the address ",
                    network::kLoopback, ", but ", request.group.endpoint_flags.address, " is ",
                    request.group.endpoint.host);
  const std::string why = enter_private_network();
  TORCH_CHECK_VALUE(!is_asked || why.empty(), "--isolate=on: this process cannot get a private network: ", why);
  if (is_asked) {
    tell("this job runs in a private network");
  }
}

// Creates the simulated network, passes it to the workers in `options`, and sets the address at which `group` meets.
std::optional<SimulatedNetwork> simulate_network(const LaunchRequest& request, LaunchOptions& options,
                                                 GroupRequest& group) {
  if (!request.simulated) {
    return std::nullopt;
  }
  SimulatedNetwork network(*request.simulated, options.nproc_per_node);
  options.networks = {.text = shape_text(*request.simulated),
                      .interface = SimulatedNetwork::kInterface,
                      .namespaces = network.namespaces()};
  group.endpoint.host = SimulatedNetwork::kStoreAddress;
  return network;
}

EnvironmentVariables with_secret(EnvironmentVariables environment, const std::filesystem::path& file) {
  if (!file.empty()) {
    environment[program::kSecretVariable] = file;
  }
  return environment;
}

void announce(const LaunchOptions& options, const EnvironmentVariables& environment, const Tell& tell) {
  if (limits_threads(options, environment)) {
    tell("OMP_NUM_THREADS is not set: each worker gets 1 thread; set it for more");
  }
  if (!options.networks.text.empty()) {
    tell("the network is simulated: each rank has an interface of " + options.networks.text);
  }
  if (options.output.writes_files()) {
    tell("output goes to " + (worker_folder(options.output.run_folder, "0", "RANK") / kOutputLog).string() + " and " +
         kErrorLog);
  }
}

// A launcher that was started by another launcher writes the failure to its own error file, as torchrun does.
void pass_failure_on(const GroupEnd& end, const EnvironmentVariables& environment, const Tell& tell) {
  const auto error_file = environment.find("TORCHELASTIC_ERROR_FILE");
  if (end.cause != GroupEnd::Cause::kFailed || error_file == environment.end() || error_file->second.empty()) {
    return;
  }
  const FailureRecord& failure = end.root();
  const program::WorkerError error = {failure.message.empty() ? describe_end(end).front() : failure.message,
                                      failure.is_final};
  if (!program::write_error_file(error_file->second, error, failure.time_ms / 1000)) {
    tell("TORCHELASTIC_ERROR_FILE=" + error_file->second + ": cannot be written");
  }
}

// Checks the limit of open files in advance: exceeding it later would end a job that restarts cannot save. The numbers
// of workers of other nodes are not known yet, and assumed equal to this node's.
void check_open_files(const LaunchRequest& request, const LaunchOptions& options) {
  const bool serves = may_serve(request.group, options);
  const int64_t served = serves ? request.group.nodes.most * options.nproc_per_node : 0;
  const int64_t needed = open_files_needed(options, served);
  const int64_t limit = network::open_file_limit();
  TORCH_CHECK_VALUE(limit >= needed, "RLIMIT_NOFILE: at most ", limit,
                    " files may be open, but this launcher needs about ", needed,
                    ", with --nproc_per_node=", options.nproc_per_node, "; raise the limit (ulimit -Hn)");
}

// Makes the rendezvous on a separate thread, because it may take long. A signal ends the launcher in the meantime: then
// it returns null and sets `signal`.
//
// After a signal it waits for the thread for at most kPatience, the longest time of a connection to the store. The
// reason is that c10d must not run while main returns and static objects are destroyed. A thread whose name lookup
// takes longer is left behind, and ends with the process.
std::unique_ptr<JobRendezvous> open_rendezvous(WorkerRunner& runner, const GroupRequest& group,
                                               std::chrono::milliseconds interval, const LaunchOptions& options,
                                               int& signal) {
  std::packaged_task<std::unique_ptr<JobRendezvous>()> task(
      [group, options, interval] { return std::make_unique<JobRendezvous>(group, options, interval); });
  auto made = task.get_future();
  std::thread(std::move(task)).detach();
  signal = wait_unless_interrupted(
      runner, [&](std::chrono::milliseconds patience) { return made.wait_for(patience) == std::future_status::ready; });
  if (signal != 0) {
    made.wait_for(HostedStore::kPatience);
    return nullptr;
  }
  return made.get();
}

// Prints an end that no agent has printed. Returns the exit code.
int print_end(const GroupEnd& end, const Tell& tell) {
  for (const std::string& line : describe_end(end)) {
    tell(line);
  }
  return end.exit_code();
}

}  // namespace

int launch(const LaunchRequest& request, const EnvironmentVariables& environment, const Tell& tell) {
  open_missing_streams();
  isolate(request, environment, tell);
  // Early, because the runner must take over signals before there is a second thread.
  ProcessRunner runner(
      {.prefix = request.prefix, .signals = parse_handled_signals("--signals_to_handle", request.signals_to_handle)});
  LaunchOptions options = options_for(request, environment);
  check_open_files(request, options);
  GroupRequest group = request.group;
  const std::optional<SimulatedNetwork> network = simulate_network(request, options, group);
  const RunFolder folder(request.log_dir, new_run_id(),
                         options.output.writes_files() ? RunFolder::Fate::kKept : RunFolder::Fate::kTemporary,
                         environment);
  options.output.run_folder = folder.path();
  int signal = 0;
  const auto rendezvous = open_rendezvous(runner, group, request.monitor_interval, options, signal);
  if (rendezvous == nullptr) {
    return print_end({.cause = GroupEnd::Cause::kInterrupted, .signal = signal}, tell);
  }

  if (!rendezvous->warning().empty()) {
    tell(rendezvous->warning());
  }
  announce(options, environment, tell);
  Agent agent(runner, rendezvous->get(),
              {.launch = options,
               .environment = with_secret(environment, request.secret_file),
               .shutdown_timeout = request.shutdown_timeout,
               .signal_timeout = request.signal_timeout,
               .monitor_interval = request.monitor_interval,
               .tell = tell});
  const GroupEnd end = agent.run();
  pass_failure_on(end, environment, tell);
  return end.exit_code();
}

}  // namespace narrowcast::launcher

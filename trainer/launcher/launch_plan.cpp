#include "trainer/launcher/launch_plan.h"

namespace narrowcast::launcher {
namespace {

std::filesystem::path rank_folder(const LaunchOptions& options, const Rendezvous& rendezvous, int64_t rank) {
  return options.run_folder / ("attempt_" + std::to_string(rendezvous.restart_count)) / std::to_string(rank);
}

// What is the same for all workers of this node.
EnvironmentVariables node_environment(const LaunchOptions& options, const Rendezvous& rendezvous) {
  return {
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", std::to_string(rendezvous.world_size)},
      {"GROUP_RANK", std::to_string(rendezvous.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(rendezvous.nodes)},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", std::to_string(rendezvous.world_size)},
      {"MASTER_ADDR", rendezvous.master_addr},
      {"MASTER_PORT", std::to_string(rendezvous.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(rendezvous.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", rendezvous.run_id},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 serves the store
  };
}

}  // namespace

bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited) {
  return options.nproc_per_node > 1 && !SessionEnv::from_variables(inherited).omp_num_threads_set;
}

std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Rendezvous& rendezvous,
                                        const EnvironmentVariables& inherited) {
  EnvironmentVariables environment = node_environment(options, rendezvous);
  if (limits_threads(options, inherited)) {
    environment.emplace("OMP_NUM_THREADS", "1");
  }
  // What is there already wins over what is inherited.
  environment.insert(inherited.begin(), inherited.end());
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // unless the user set it

  std::vector<WorkerCommand> workers;
  for (int64_t local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    const int64_t rank = rendezvous.first_rank + local_rank;
    const std::filesystem::path folder = rank_folder(options, rendezvous, rank);
    WorkerCommand worker{rank, local_rank, options.command, environment, folder / "error.json", {}, {}};
    for (const char* const name : {"RANK", "ROLE_RANK"}) {
      worker.environment[name] = std::to_string(rank);
    }
    worker.environment["LOCAL_RANK"] = std::to_string(local_rank);
    worker.environment["TORCHELASTIC_ERROR_FILE"] = worker.error_file;
    if (options.output_to_files) {
      worker.output_file = folder / "stdout.log";
      worker.log_file = folder / "stderr.log";
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

}  // namespace narrowcast::launcher

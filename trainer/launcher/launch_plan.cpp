#include "trainer/launcher/launch_plan.h"

namespace narrowcast::launcher {
namespace {

std::filesystem::path rank_folder(const LaunchOptions& options, const Round& round, int64_t rank) {
  return options.output.run_folder / ("attempt_" + std::to_string(round.restart_count)) / std::to_string(rank);
}

// What is the same for all workers of this node.
EnvironmentVariables node_environment(const LaunchOptions& options, const Round& round) {
  return {
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", std::to_string(round.world_size)},
      {"GROUP_RANK", std::to_string(round.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(round.nodes)},
      {"ROLE_NAME", options.role},
      {"ROLE_WORLD_SIZE", std::to_string(round.role_world_size)},
      {"MASTER_ADDR", round.master_addr},
      {"MASTER_PORT", std::to_string(round.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(round.max_restarts)},
      {"TORCHELASTIC_RUN_ID", round.run_id},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", options.signals_to_handle},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},  // a launcher serves the store
  };
}

// What differs between the workers of this node.
void add_own_part(const LaunchOptions& options, const Round& round, WorkerCommand& worker) {
  const std::filesystem::path folder = rank_folder(options, round, worker.rank);
  const WorkerTargets targets = targets_for(options.output, worker.local_rank, folder);
  worker.error_file = folder / "error.json";
  worker.output = targets.output;
  worker.error = targets.error;
  worker.environment["RANK"] = std::to_string(worker.rank);
  worker.environment["LOCAL_RANK"] = std::to_string(worker.local_rank);
  worker.environment["ROLE_RANK"] = std::to_string(round.role_first_rank + worker.local_rank);
  worker.environment["TORCHELASTIC_ERROR_FILE"] = worker.error_file;
}

}  // namespace

bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited) {
  return options.nproc_per_node > 1 && !SessionEnv::from_variables(inherited).omp_num_threads_set;
}

int64_t open_files_needed(const LaunchOptions& options, int64_t served_workers) {
  constexpr int64_t kOwn = 32;
  const int64_t for_output = options.output.writes_files() ? 4 : 2;
  return kOwn + for_output * options.nproc_per_node + 2 * served_workers;
}

std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Round& round,
                                        const EnvironmentVariables& inherited) {
  EnvironmentVariables environment = node_environment(options, round);
  if (limits_threads(options, inherited)) {
    environment.emplace("OMP_NUM_THREADS", "1");
  }
  // What is there already wins over what is inherited.
  environment.insert(inherited.begin(), inherited.end());
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");  // unless the user set it

  std::vector<WorkerCommand> workers;
  for (int64_t local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    WorkerCommand worker{round.first_rank + local_rank, local_rank, options.command, environment, {}, {}, {}};
    add_own_part(options, round, worker);
    workers.push_back(std::move(worker));
  }
  return workers;
}

}  // namespace narrowcast::launcher

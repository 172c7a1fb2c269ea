// From what the user asked for to one command per worker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trainer/launcher/worker_runner.h"

namespace narrowcast::launcher {

// What the nodes of a job agree on. On one node there is nobody to ask: the
// defaults, an address and a port are all. (Several nodes will agree through a store.)
struct Rendezvous {
  std::string master_addr = "127.0.0.1";  // where rank 0 serves the job's store
  int64_t master_port = 0;
  std::string run_id;     // the same for all workers of the job, different for each job
  int64_t node_rank = 0;  // among the nodes
  int64_t nodes = 1;
  int64_t first_rank = 0;     // the global rank of this node's first worker
  int64_t world_size = 1;     // workers on all nodes
  int64_t restart_count = 0;  // how often the job was restarted
};

struct LaunchOptions {
  std::vector<std::string> command;  // the program's path, then its arguments; the same for every worker
  int64_t nproc_per_node = 1;        // workers on this node
  std::filesystem::path run_folder;  // holds a folder for each attempt, and in it one for each rank
  bool output_to_files = false;      // stdout.log and stderr.log in the rank's folder
};

// One command for each worker of this node, in rank order, with the environment
// that torchrun gives (docs/launcher.md has the table) on top of `inherited`.
// OMP_NUM_THREADS is set to 1 for several workers unless the user chose a number.
std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Rendezvous& rendezvous,
                                        const EnvironmentVariables& inherited);

// Whether plan_workers sets OMP_NUM_THREADS itself, which users are told.
bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited);

}  // namespace narrowcast::launcher

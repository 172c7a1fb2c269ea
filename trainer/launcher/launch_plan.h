// From what the user asked for to one command per worker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/launcher/posix/stream_choices.h"
#include "trainer/launcher/rendezvous.h"
#include "trainer/launcher/workers/worker_runner.h"

namespace narrowcast::launcher {

struct LaunchOptions {
  std::vector<std::string> command;  // the program's path, then its arguments; the same for every worker
  int64_t nproc_per_node = 1;        // workers on this node
  std::string role = "default";
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as the workers are told
  OutputChoices output;                                             // its run_folder holds error files too
};

// One command for each worker of this node in a round, in rank order, with the environment
// that torchrun gives (docs/launcher.md has the table) on top of `inherited`.
// OMP_NUM_THREADS is set to 1 for several workers unless the user chose a number.
std::vector<WorkerCommand> plan_workers(const LaunchOptions& options, const Round& round,
                                        const EnvironmentVariables& inherited);

// How many files a launcher has open while its workers run, about: its own, two pipes and two files of output for each
// worker, and two connections for each worker of the job, `served_workers`, if it serves the store.
int64_t open_files_needed(const LaunchOptions& options, int64_t served_workers);

// Whether plan_workers sets OMP_NUM_THREADS itself, which users are told.
bool limits_threads(const LaunchOptions& options, const EnvironmentVariables& inherited);

}  // namespace narrowcast::launcher

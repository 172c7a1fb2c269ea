// Support for a launcher that restarts a job.
#include "trainer/train/job/restarts.h"

#include <string>
#include <utility>

#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/job/training_job.h"

namespace narrowcast::job {
std::string run_of(const WorkerEnv& env) { return env.run_id == "none" ? "" : env.run_id; }

TrainJob as_restarted(TrainJob job, const WorkerEnv& env) {
  const std::string run = run_of(env);
  if (env.restart_count == 0 || run.empty()) {
    return job;
  }
  job.output.restarted_run = run;
  const std::string& folder = job.checkpoints.folder;
  job.checkpoints.resume = job.checkpoints.resume || (!folder.empty() && checkpoint::has_checkpoint_of(folder, run));
  return job;
}

}  // namespace narrowcast::job

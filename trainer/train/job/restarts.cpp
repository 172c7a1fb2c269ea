#include "trainer/train/job/restarts.h"

#include <string>

#include "trainer/base/network/places.h"
#include "trainer/ddp/process_group/first_failure.h"
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

TrainJob restarted_alike(const TrainJob& job, const JobContext& context, const ProcessGroupPtr& group) {
  TrainJob restarted = as_restarted(job, context.env);
  restarted.checkpoints.resume = from_rank_0(group, restarted.checkpoints.resume ? "resume" : "") == "resume";
  return restarted;
}

bool recovers_in_place(const TrainJob& job, const WorkerEnv& env) {
  return env.recovers_in_place && !rendezvous::is_alone(env) && !job.verification.has_value();
}

bool has_recovered(const AgreedJob& agreed) {
  return agreed.recovery != nullptr && agreed.recovery->recovered.has_value();
}

}  // namespace narrowcast::job

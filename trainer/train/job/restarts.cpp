#include "trainer/train/job/restarts.h"

#include <ostream>
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

void recover_from_memory(const AgreedJob& begun) {
  InPlaceRecovery& recovery = *begun.recovery;
  recovery.why_nothing.clear();
  recovery.recovered = training::share_states(begun.group, recovery.surviving, &recovery.why_nothing);
  if (recovery.recovered.has_value()) {
    return;
  }
  if (recovery.interrupted_at.has_value()) {
    recovery.surviving.reset();
    recovery.make_inputs();  // The training has changed the model.
  }
  if (begun.context.env.rank == 0 && !recovery.why_nothing.empty()) {
    begun.context.progress << "cannot recover from the ranks' memory: " << recovery.why_nothing
                           << "; goes back to the newest checkpoint" << std::endl;
  }
}

std::string why_memory_is_lost(const AgreedJob& agreed) {
  return agreed.recovery != nullptr ? agreed.recovery->why_nothing : "";
}

bool has_recovered(const AgreedJob& agreed) {
  return agreed.recovery != nullptr && agreed.recovery->recovered.has_value();
}

}  // namespace narrowcast::job

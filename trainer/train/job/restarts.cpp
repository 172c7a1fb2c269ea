#include "trainer/train/job/restarts.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <narrowcast/network_errors.h>
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

bool recovers_in_place(const TrainJob& job, const WorkerEnv& env, at::Device device) {
  return env.recovers_in_place && !env.is_alone() && !job.verification.has_value() && device.is_cpu();
}

bool has_recovered(const AgreedJob& agreed) {
  return agreed.recovery != nullptr && agreed.recovery->recovered.has_value();
}

int run_until_nothing_is_lost(const WorkerEnv& env, const Attempt& attempt) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::minutes kLongAgo{1};
  InPlaceRecovery recovery;
  WorkerEnv now = env;
  int64_t last_step = -1;
  int64_t fruitless = 0;
  for (;;) {
    recovery.has_joined = false;
    recovery.regroups = false;
    try {
      const int code = attempt(recovery, now);
      if (!recovery.regroups) {
        return code;
      }
      recovery.failed_at = Clock::now();
    } catch (const c10::DistBackendError& error) {
      const int64_t step = recovery.surviving ? recovery.surviving->content.step : -1;
      const Clock::time_point failed_at = Clock::now();
      const bool was_just_before = recovery.failed_at.has_value() && failed_at - *recovery.failed_at < kLongAgo;
      fruitless = step == last_step && was_just_before ? fruitless + 1 : 0;
      const bool is_asked_to_stop = recovery.caught != nullptr && recovery.caught->first() != 0;
      if (!recovery.has_joined || is_asked_to_stop || is_time_out(error) || fruitless == kMostFruitless) {
        throw;
      }
      last_step = step;
      recovery.failed_at = failed_at;
    }
    ++now.restart_count;
  }
}

}  // namespace narrowcast::job

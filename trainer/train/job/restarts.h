// Support for a launcher that restarts a job.
#pragma once

#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// The name of the launcher's job (TORCHELASTIC_RUN_ID). Empty without a name, or if the launcher calls it "none".
std::string run_of(const WorkerEnv& env);

// The job as a launcher's restart runs it: it resumes from checkpoints that the same run has written, even without
// --resume, and may replace the metrics of the job's former start. Other jobs are returned unchanged.
TrainJob as_restarted(TrainJob job, const WorkerEnv& env);

}  // namespace narrowcast::job

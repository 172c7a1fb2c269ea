// What a job does for a launcher that starts it again.
#pragma once

#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// The name of the launcher's job (TORCHELASTIC_RUN_ID); empty if it has none, which launchers call "none", too.
std::string run_of(const WorkerEnv& env);

// The job as a launcher's restart is to run it: it resumes from checkpoints that the same run has written, also without
// --resume, and may replace the metrics of its own former start. Other jobs are returned as they are.
TrainJob as_restarted(TrainJob job, const WorkerEnv& env);

}  // namespace narrowcast::job

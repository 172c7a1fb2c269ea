// A job that verifies gradients.
#pragma once

#include <cstdint>

#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// Makes the checks of a job that verifies gradients that a rank can make before it joins the others. Throws
// c10::ValueError naming the flag.
void check_verification_job(const TrainJob& job, int64_t world_size);

// A collective: verifies. Each rank's batch is its part of the first training batch or, for the reference task, the
// reference test's batch. Rank 0 prints the table. Returns kSuccess, or kCheckFailed if a hook did not pass.
int run_verification_job(const AgreedJob& agreed);

}  // namespace narrowcast::job

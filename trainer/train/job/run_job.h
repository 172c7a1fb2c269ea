// A job from the first check to the last line of its results.
#pragma once

#include "trainer/train/job/plan.h"

namespace narrowcast::job {

// The number of threads of this rank: `threads`, or for 0 OMP_NUM_THREADS if it is set, else the node's cores shared
// by its ranks. Throws c10::ValueError for another value than 0..4096.
void set_threads(int64_t threads, const JobContext& context);

// Checks and reads all that one rank can by itself, joins the other ranks, compares the plans, and trains or verifies.
// Returns kSuccess, or kCheckFailed if gradients are not as they should be, the loss is not finite or the replicas
// differ at the end. Throws the three classes of errors that docs/errors.md tells apart.
int run_job(const TrainJob& job, const JobContext& context);

}  // namespace narrowcast::job

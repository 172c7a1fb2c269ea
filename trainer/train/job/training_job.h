// A job that trains, with all it prints and writes.
#pragma once

#include "trainer/train/job/plan.h"

namespace narrowcast::job {

// What a rank can check before it joins the others. Throws c10::ValueError naming the flag or the file.
void check_training_job(const TrainJob& job, int64_t world_size);

// A collective. Rank 0 prints the results and writes the files. Returns an exit code as run_job does.
int run_training_job(const AgreedJob& agreed);

}  // namespace narrowcast::job

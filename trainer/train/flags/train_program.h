// narrowcast-train without its main file: tests run it in their own process.
#pragma once

#include "trainer/train/flags/train_flags.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast {

// Runs the comparison, evaluation, training or verification that the command line requests, and returns the exit code.
// `context` contains the place that the command line gives to the process (read_worker_env). Throws as read_train_job
// and job::run_job do.
int run_train(const Given& given, const job::JobContext& context);

}  // namespace narrowcast

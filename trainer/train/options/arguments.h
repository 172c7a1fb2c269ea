// The values of narrowcast-train's command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/outer_options.h>
#include "trainer/train/options/job_options.h"
#include "trainer/train/options/worker_options.h"
#include "trainer/train/verification/verify_gradients.h"

namespace narrowcast::options {

// The learning rate of sgd if none is given.
inline constexpr double kSgdLearningRate = 0.1;

// The members that options set. The default constructor sets the program's defaults.
struct Arguments {
  Arguments();

  // The values of an existing job: all values on which its plan depends.
  explicit Arguments(const job::TrainJob& of_job);

  job::TrainJob job;                 // its `outer` and `verification` are not used
  bool stochastic_rounding = false;  // with the job's seed
  OuterOptions outer;                // for --sync_every; --outer_warmup and the route options are in the hook's

  bool verify_gradients = false;
  verification::VerificationOptions verification;

  std::string evaluate = {};  // the file of a trained model
  models::GenerateOptions generation = {.count = 0};
  std::string prompt = {};

  std::vector<std::string> compare = {};  // folders of trainings, or files
  WorkerPlace place;
};

}  // namespace narrowcast::options

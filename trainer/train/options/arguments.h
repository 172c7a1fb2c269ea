// What the command line of narrowcast-train says.
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

// The learning rate of sgd where none is given.
inline constexpr double kSgdLearningRate = 0.1;

// The members that options set. Made anew it holds the defaults of the program.
struct Arguments {
  Arguments();

  // Those of a job that is already made: all that its plan depends on.
  explicit Arguments(const job::TrainJob& of_job);

  job::TrainJob job;                 // without `outer` and `verification`
  bool stochastic_rounding = false;  // by the job's seed
  OuterOptions outer;                // with --sync_every; --outer_warmup and options of the route are among the hook's

  bool verify_gradients = false;
  verification::VerificationOptions verification;

  std::string evaluate = {};  // the file of a trained model
  models::GenerateOptions generation = {.count = 0};
  std::string prompt = {};

  std::vector<std::string> compare = {};  // folders of trainings, or files
  WorkerPlace place;
};

}  // namespace narrowcast::options

// The results of a training at its end: for metrics, and printed for people.
#pragma once

#include <nlohmann/json.hpp>

#include "trainer/train/job/train_job.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {

struct EndedTraining {
  training::TrainingResult result;
  bool replicas_identical;
};

// The members of the event `end` in metrics.jsonl.
nlohmann::json results_of(const EndedTraining& ended);

// Prints losses, bytes and times.
void print_results(const AgreedJob& agreed, const EndedTraining& ended);

// Generates text with the trained model and prints it. Does nothing for a model or job without samples.
void print_sample(const AgreedJob& agreed);

}  // namespace narrowcast::job

// A job of one process that takes a moment.
#pragma once

#include <string>

#include "tests/support/temporary_folder.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::testing {

inline std::string verse() {
  std::string text;
  for (int line = 0; line < 150; ++line) {
    text += "line " + std::to_string(line % 10) + " of a verse\n";
  }
  return text;
}

inline job::TrainJob small_job(const TemporaryFolder& folder) {
  job::TrainJob job;
  job.version = "1.2.3";
  job.model_options = {{"layers", 1}, {"heads", 2}, {"width", 16}, {"context", 8}};
  job.data = {folder.write("verse.txt", verse())};
  job.threads = 1;
  job.training.steps = 4;
  job.training.batch_size = 6;
  job.training.eval_batches = 1;
  job.output.sample_length = 10;
  return job;
}

}  // namespace narrowcast::testing

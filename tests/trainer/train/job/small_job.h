// A job that takes a moment, and its outcome on each rank.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/digits.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "tests/trainer/train/training/small_text.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::testing {

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

// The same for a TorchScript module on small digits; all files are in the folder.
inline job::TrainJob module_job(const TemporaryFolder& folder, const std::string& forward = kPredicts) {
  job::TrainJob job = small_job(folder);
  job.model = folder / "net.pt";
  job.model_options = {};
  job.loss = forward == kPredicts ? "cross_entropy" : "";
  digit_net(forward).save(job.model);
  write_digits(folder);
  job.data = {folder.path().string()};
  return job;
}

// The outcome of one rank.
struct JobOutcome {
  int exit_code = -1;
  std::string results;
  std::string progress;
};

// Calls run(context) for the rank of `env`.
template <class Run>
JobOutcome outcome_of(const WorkerEnv& env, const Run& run) {
  std::ostringstream results;
  std::ostringstream progress;
  const int exit_code = run(job::JobContext{
      .env = env, .session = {}, .results = results, .progress = progress, .progress_is_terminal = false});
  return {exit_code, results.str(), progress.str()};
}

// Runs the job in a single process.
inline JobOutcome run_alone(const job::TrainJob& job, const WorkerEnv& env = {}) {
  return outcome_of(env, [&](const job::JobContext& context) { return run_job(job, context); });
}

// Calls `run` on all ranks, each a thread, of a job on which they have agreed.
inline std::vector<JobOutcome> run_agreed(const job::TrainJob& job, int64_t world_size,
                                          const std::function<int(const job::AgreedJob&)>& run) {
  std::vector<JobOutcome> outcomes(static_cast<size_t>(world_size));
  std::vector<job::JobInputs> inputs;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    inputs.push_back(make_inputs(job));
  }
  const nlohmann::json plan = make_plan(job, inputs[0], world_size);
  run_ranks(world_size, [&](int64_t rank, const ProcessGroupPtr& group) {
    WorkerEnv env;
    env.rank = rank;
    env.world_size = world_size;
    outcomes[rank] = outcome_of(env, [&](const job::JobContext& context) {
      return run({job, inputs[rank], plan, group, context});
    });
  });
  return outcomes;
}

}  // namespace narrowcast::testing

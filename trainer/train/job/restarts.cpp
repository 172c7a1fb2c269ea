// What a training does for a launcher that starts its ranks again.
#include <c10/util/StringUtil.h>

#include <string>
#include <utility>

#include "trainer/base/program/failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/job/training_job.h"
#include "trainer/train/reporting/progress.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {
namespace {

std::string divergence_text(const AgreedJob& agreed, const training::TrainingResult& result) {
  if (!result.gave_up_after.has_value()) {
    return c10::str("the loss is not finite by step ", *result.diverged_at,
                    ": lower --learning_rate, or --clip_grad_norm");
  }
  return c10::str(result.gave_up_after->in_a_row, " steps in a row were skipped by step ", *result.diverged_at,
                  " (--max_skipped_steps=", agreed.job.training.max_skipped_steps,
                  "): ", reporting::blame_text(*result.gave_up_after));
}

}  // namespace

std::string run_of(const WorkerEnv& env) { return env.run_id == "none" ? "" : env.run_id; }

TrainJob as_restarted(TrainJob job, const WorkerEnv& env) {
  const std::string run = run_of(env);
  if (env.restart_count == 0 || run.empty()) {
    return job;
  }
  job.output.restarted_run = run;
  const std::string& folder = job.checkpoints.folder;
  job.checkpoints.resume = job.checkpoints.resume || (!folder.empty() && checkpoint::has_checkpoint_of(folder, run));
  return job;
}

// A training that starts again computes the same.
void report_divergence(const AgreedJob& agreed, const training::TrainingResult& result) {
  const JobContext& context = agreed.context;
  const std::string text = divergence_text(agreed, result);
  if (context.env.rank == 0) {
    context.progress << text << std::endl;
  }
  program::error_file_writer(context.env.error_file)({program::kCheckFailed, text, /*is_final=*/true});
}

}  // namespace narrowcast::job

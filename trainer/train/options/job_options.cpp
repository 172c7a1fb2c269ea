#include "trainer/train/options/job_options.h"

#include <c10/util/Exception.h>

#include <chrono>

#include "hooks/table/hook_table.h"

namespace narrowcast::job {
namespace {

// A rank that has no more steps to take waits for a whole round of the others. All ranks learn a static graph's buckets
// together, in the first two steps, and after each restart.
void check_rounds_of_seconds(const TrainJob& job) {
  const double seconds = *job.outer->sync_seconds();
  const double timeout = std::chrono::duration<double>(job.group.timeout).count();
  TORCH_CHECK_VALUE(2 * seconds <= timeout, "sync_seconds: must be at most half of timeout_seconds (", timeout,
                    "), but is ", seconds, ": at the end of the training, fast ranks wait for that long and a step");
  TORCH_CHECK_VALUE(job.training.steps > job.outer->warmup_steps(), "steps: must be more than outer_warmup (",
                    job.outer->warmup_steps(), "), but is ", job.training.steps);
  TORCH_CHECK_VALUE(!job.ddp.static_graph(),
                    "static_graph: is not possible with sync_seconds, because all ranks learn ", "the graph together");
}

// All ranks choose the size of buckets together, in the first four steps after a start. An early stop would be followed
// by an outer step with what late groups have learnt, and so by another model than the one that was evaluated.
void check_quorum_of_job(const TrainJob& job) {
  constexpr int64_t kFewestSteps = 4;
  TORCH_CHECK_VALUE(!job.ddp.static_graph(),
                    "static_graph: is not possible with outer_quorum, because all ranks learn the graph together");
  TORCH_CHECK_VALUE(job.outer->sync_every() >= kFewestSteps, "sync_every: must be at least ", kFewestSteps,
                    " with outer_quorum, because all ranks take their first steps together, but is ",
                    job.outer->sync_every());
  TORCH_CHECK_VALUE(job.training.early_stop == 0, "early_stop: ", job.training.early_stop,
                    " is not possible with outer_quorum, which averages the work of late groups at the end");
}

}  // namespace

bool keeps_replicas_equal(const TrainJob& job) {
  return !job.outer.has_value() && hooks::hook_row(job.ddp.hook()).keeps_replicas_equal;
}

// Steps after the last synchronisation would be lost in the outer parameters. A training without one has no outer
// parameters.
void check_outer_options(const TrainJob& job) {
  const bool is_local = hooks::hook_row(job.ddp.hook()).averages_in_groups;
  TORCH_CHECK_VALUE(job.outer.has_value() == is_local, "sync_every or sync_seconds: must be given with the hook ",
                    hooks::hook_names_that_take(hooks::OptionKind::kLocal), " and only with it, but the hook is ",
                    job.ddp.hook());
  if (!is_local) {
    return;
  }
  const OuterOptions& outer = *job.outer;
  outer.validate();
  TORCH_CHECK_VALUE(!job.ddp.find_unused_parameters(), "find_unused_parameters: makes all ranks communicate in every ",
                    "step, which the hook ", job.ddp.hook(), " avoids");
  if (outer.quorum()) check_quorum_of_job(job);
  if (outer.sync_seconds()) {
    check_rounds_of_seconds(job);
    return;
  }
  const int64_t local_steps = job.training.steps - outer.warmup_steps();
  TORCH_CHECK_VALUE(local_steps > 0 && local_steps % outer.sync_every() == 0, "steps: must be outer_warmup (",
                    outer.warmup_steps(), ") plus a multiple of sync_every (", outer.sync_every(),
                    "), or the last steps would be lost, but is ", job.training.steps);
  TORCH_CHECK_VALUE(job.training.early_stop == 0 || (job.training.eval_every % outer.sync_every() == 0 &&
                                                     outer.warmup_steps() % outer.sync_every() == 0),
                    "early_stop: needs eval_every and outer_warmup that are multiples of sync_every (",
                    outer.sync_every(), "), or the steps after an exchange would be lost, but they are ",
                    job.training.eval_every, " and ", outer.warmup_steps());
}

}  // namespace narrowcast::job

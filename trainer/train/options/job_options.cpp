#include "trainer/train/options/job_options.h"

#include "hooks/table/hook_table.h"

namespace narrowcast::job {

bool keeps_replicas_equal(const TrainJob& job) {
  return !job.outer.has_value() && hooks::hook_row(job.ddp.hook()).keeps_replicas_equal;
}

}  // namespace narrowcast::job

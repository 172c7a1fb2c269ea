#include "trainer/train/job/run_job.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "trainer/base/program/failure.h"
#include "trainer/train/job/job_checkpoints.h"
#include "trainer/train/job/plan.h"
#include "trainer/train/job/training_job.h"
#include "trainer/train/job/verification_job.h"
#include "trainer/train/training/device.h"

namespace narrowcast::job {
namespace {

// Whatever a rank can find wrong without the others.
void check_alone(const TrainJob& job, int64_t world_size) {
  job.ddp.validate();
  if (job.verification.has_value()) {
    check_verification_job(job, world_size);
  } else {
    check_training_job(job, world_size);
  }
}

void print_plan(const TrainJob& job, nlohmann::json plan, const JobContext& context) {
  if (job.checkpoints.resume || !job.checkpoints.resume_from.empty()) {
    plan["goes_on_from"] = resume_text(job, plan, context.progress);
  }
  context.results << plan_text(plan) << std::flush;
}

ProcessGroupOptions group_options(const TrainJob& job, at::Device device) {
  ProcessGroupOptions options = job.group;
  options.backend = choose_backend(job.group.backend, device);
  if (device.is_cuda()) {
    options.gpu = device.index();
  }
  return options;
}

}  // namespace

void set_threads(int64_t threads, const JobContext& context) {
  TORCH_CHECK_VALUE(threads >= 0 && threads <= 4096, "threads: must be in 0..4096, but is ", threads);
  if (threads == 0 && context.session.omp_num_threads_set) {
    return;
  }
  // All ranks of a node on all its cores would wait for each other.
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t share = std::max<int64_t>(1, cores / context.env.local_world_size);
  at::set_num_threads(static_cast<int>(threads > 0 ? threads : share));
}

int run_job(const TrainJob& job, const JobContext& context) {
  set_threads(job.threads, context);
  check_alone(job, context.env.world_size);
  const at::Device device = choose_device(job.device, context.env);
  const ProcessGroupOptions group = group_options(job, device);
  JobInputs inputs = make_inputs(job);
  inputs.device = device;
  const nlohmann::json plan = make_plan(job, inputs, context.env.world_size);
  if (job.dry_run) {
    if (context.env.rank == 0) {
      print_plan(job, plan, context);
    }
    return program::kSuccess;
  }
  use_device(device);
  const ProcessGroupScope scope(context.env, group);
  return scope.run([&] {
    check_equal_on_all_ranks(scope.group(), plan_values(plan));
    inputs.model->to(device);  // It was initialised on the CPU: alike wherever it computes.
    const AgreedJob agreed = {job, inputs, plan, scope.group(), context};
    return job.verification.has_value() ? run_verification_job(agreed) : run_training_job(agreed);
  });
}

}  // namespace narrowcast::job

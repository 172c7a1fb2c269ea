#include "trainer/train/job/verification_job.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "models/bundled/ddp_comm_hook_task.h"
#include "models/table/model_table.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/optimization/device.h"
#include "trainer/train/verification/hook_report.h"
#include "trainer/train/verification/hook_run.h"
#include "trainer/train/verification/verify_gradients.h"

namespace narrowcast::job {
namespace {

using verification::HookReport;

models::Batch batch_of_rank(const AgreedJob& agreed) {
  const int64_t rank = agreed.group->getRank();
  return agreed.inputs.dataset == nullptr ? models::DdpCommHookTask::reference_batch(rank)
                                          : first_batch(agreed.job, agreed.inputs, rank, agreed.group->getSize());
}

// Empty with equal shares.
std::optional<double> weight_of_rank(const AgreedJob& agreed) {
  const training::TrainingOptions& options = agreed.job.training;
  if (options.shares.are_equal()) return std::nullopt;
  return training::batch_plan(options, agreed.group->getSize()).weight(agreed.group->getRank(), /*micro_step=*/0);
}

// On a GPU each hook has a separate backward pass, and all passes must compute the same. Fused attention does not: the
// order of its additions varies, also in LibTorch's deterministic mode.
void compute_deterministically() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

std::string is_last_line(const verification::IsLastResult& result) {
  return "is_last: set for the last of " + std::to_string(result.buckets) +
         " buckets only: " + (result.passed ? "pass" : "FAIL") + "\n";
}

bool print_verdicts(const AgreedJob& agreed, const std::vector<HookReport>& reports) {
  const bool is_rank_0 = agreed.context.env.rank == 0;
  if (is_rank_0) {
    agreed.context.results << verification::gradient_table(reports) << std::flush;
  }
  bool passed = std::all_of(reports.begin(), reports.end(), [](const HookReport& report) { return report.passed(); });
  if (agreed.job.verification->reference_task) {
    const verification::IsLastResult is_last = verification::check_is_last(agreed.group);
    passed = passed && is_last.passed;
    if (is_rank_0) {
      agreed.context.results << is_last_line(is_last) << std::flush;
    }
  }
  return passed;
}

}  // namespace

void check_verification_job(const TrainJob& job, int64_t world_size) {
  verification::check_verification_options(*job.verification);
  const data::Shares& shares = job.training.shares;
  const bool learns = models::any_model_row(job.model).learns();
  TORCH_CHECK_VALUE(shares.are_equal() || (learns && shares.kind == data::Shares::Kind::kGiven),
                    "shares: must be a list of samples with verify_gradients, and needs a model with data, but is ",
                    data::to_string(shares), " with ", job.model);
  if (!shares.are_equal()) {
    training::batch_plan(job.training, world_size);  // Throws for wrong shares.
  } else if (learns) {
    TORCH_CHECK_VALUE(job.training.batch_size >= 1 &&
                          data::divides_evenly({.global_batch = job.training.batch_size, .world_size = world_size}),
                      "batch_size: must be a positive multiple of the number of ranks (", world_size, "), but is ",
                      job.training.batch_size);
  }
}

int run_verification_job(const AgreedJob& agreed) {
  const at::Device device = agreed.inputs.device;
  if (!device.is_cpu()) {
    compute_deterministically();
  }
  const auto make_hook = [&](const DdpOptions& ddp) {
    return hooks::create_comm_hook(ddp.hook(), ddp.hook_options(agreed.group));
  };
  const std::vector<HookReport> reports =
      verification::verify_gradients({.model = agreed.inputs.model,
                                      .batch = training::on_device(batch_of_rank(agreed), device),
                                      .group = agreed.group,
                                      .ddp = agreed.job.ddp,
                                      .weight = weight_of_rank(agreed)},
                                     *agreed.job.verification, make_hook);
  return print_verdicts(agreed, reports) ? program::kSuccess : program::kCheckFailed;
}

}  // namespace narrowcast::job

#include "trainer/train/options/arguments.h"

#include <optional>

namespace narrowcast::options {

Arguments::Arguments() {
  job.device = "auto";
  job.group.backend = "auto";
  job.ddp.hook("auto").bucket_cap_mb(std::nullopt);
  job.training.optimizer.momentum = training::usual_momentum(training::OptimizerKind::kSgd);
  job.checkpoints.preemption_signals = "SIGTERM,SIGUSR1";
  outer.wire({.format = OuterOptions().wire().format, .error_feedback = true});
}

Arguments::Arguments(const job::TrainJob& of_job)
    : job(of_job),
      outer(of_job.outer.value_or(OuterOptions())),
      verify_gradients(of_job.verification.has_value()),
      verification(of_job.verification.value_or(verification::VerificationOptions())) {}

}  // namespace narrowcast::options

#include "trainer/train/job/early_end.h"

#include <c10/util/StringUtil.h>

#include <csignal>
#include <ostream>
#include <string>

#include "ops/common/text.h"
#include "trainer/base/program/failure.h"
#include "trainer/ddp/recovery/stop_agreement.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/reporting/formatting.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::job {
namespace {

constexpr int kOfSignals = 128;  // Added to a signal's number for the exit code, as in shells.

// Signals that cannot be caught, report a fault of the process, or stop and continue it.
const std::vector<int> kReserved = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,
                                    SIGABRT, SIGTRAP, SIGSYS,  SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGXFSZ};

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

std::vector<int> preemption_signals(const CheckpointOptions& options) {
  return options.preemption_signals.empty() ? std::vector<int>()
                                            : parse_signals("preemption_signals", options.preemption_signals,
                                                            {.reserved = kReserved, .owner = "a training"});
}

std::unique_ptr<CaughtSignals> catch_preemption_signals(const AgreedJob& agreed) {
  const std::vector<int> signals = preemption_signals(agreed.job.checkpoints);
  return signals.empty() ? nullptr : std::make_unique<CaughtSignals>(signals, agreed.context.end_for_signal);
}

std::function<int()> asked_by(const CaughtSignals* caught) {
  return caught == nullptr ? std::function<int()>() : [caught] { return caught->first(); };
}

std::function<int()> asked_to_stop(const AgreedJob& agreed, const CaughtSignals* caught) {
  const std::function<int()> by_signal = asked_by(caught);
  if (agreed.recovery == nullptr || agreed.context.env.node == 0) {
    return by_signal;
  }
  if (!can_take_in_newcomers(agreed)) {
    agreed.recovery->keep_newcomers_out();
  }
  agreed.recovery->let_ranks_divide(training::divided_by_ranks(agreed.job.training));
  return [by_signal, has_newcomers = agreed.recovery->has_newcomers] {
    return has_newcomers() ? recovery::kNewcomers : (by_signal ? by_signal() : 0);
  };
}

int report_preemption(const AgreedJob& agreed, const training::Preemption& preempted, CaughtSignals& caught) {
  if (agreed.context.end_for_signal != nullptr) {
    caught.ignore();
  }
  if (agreed.context.env.rank == 0) {
    std::ostream& out = agreed.context.progress;
    out << signal_name(preempted.signal, "signal ") << ": stopped after step " << preempted.step << " of "
        << agreed.job.training.steps;
    if (preempted.is_saved) {
      out << "; --resume continues from "
          << printable(checkpoint::checkpoint_path(agreed.job.checkpoints.folder, preempted.step));
    } else {
      out << ", before this process took a step; there is no new checkpoint";
    }
    out << std::endl;
  }
  return kOfSignals + preempted.signal;
}

void report_divergence(const AgreedJob& agreed, const training::TrainingResult& result) {
  const JobContext& context = agreed.context;
  const std::string text = divergence_text(agreed, result);
  if (context.env.rank == 0) {
    context.progress << text << std::endl;
  }
  program::error_file_writer(context.env.error_file)({program::kCheckFailed, text, /*is_final=*/true});
}

}  // namespace narrowcast::job

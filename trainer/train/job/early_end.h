// A training that ends before its last step: by a signal, with a checkpoint, or because it has diverged.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trainer/base/process/signals.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {

// The signals for which the training writes a checkpoint and ends; empty if CheckpointOptions::preemption_signals is
// empty. Throws c10::ValueError naming the option and a signal that does not exist or has another meaning for the
// process.
std::vector<int> preemption_signals(const CheckpointOptions& options);

// Catches these signals, from here to the end of the scope. Null without signals.
std::unique_ptr<CaughtSignals> catch_preemption_signals(const AgreedJob& agreed);

// For Checkpoints::asked_to_stop: returns the signal that was caught first. Null for null; else `caught` must outlive
// it.
std::function<int()> asked_by(const CaughtSignals* caught);

// The same, or that newcomers are there (recovery::kNewcomers), with recovery in place on nodes that may change. Null
// on all ranks or on none.
std::function<int()> asked_to_stop(const AgreedJob& agreed, const CaughtSignals* caught);

// Prints on rank 0 after which step the training stopped and where it resumes, and returns the exit code, 128 plus the
// signal. If JobContext::end_for_signal ends this process, it ignores the caught signals from now on: launchers
// terminate all ranks once the first has ended, and each rank should end with this code.
int report_preemption(const AgreedJob& agreed, const training::Preemption& preempted, CaughtSignals& caught);

// Prints on rank 0 why the training diverged. Each rank writes it to its error file, as a failure that a restart cannot
// fix: a restarted training would compute the same.
void report_divergence(const AgreedJob& agreed, const training::TrainingResult& result);

}  // namespace narrowcast::job

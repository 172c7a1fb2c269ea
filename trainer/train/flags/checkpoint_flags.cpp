// The flags of checkpoints.
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "trainer/train/flags/train_flags.h"

namespace {

const narrowcast::job::CheckpointOptions kCheckpoints;
constexpr const char* kPreemptionSignals = "SIGTERM,SIGUSR1";

}  // namespace

ABSL_FLAG(std::string, checkpoint_dir, "",
          "Folder for checkpoints, made if it is not there; nodes must share it. Without it none are written.");
ABSL_FLAG(int64_t, checkpoint_every, kCheckpoints.every,
          "Steps between checkpoints; there is one after the last step, too.");
ABSL_FLAG(int64_t, keep_checkpoints, kCheckpoints.keep,
          "Newest checkpoints that are kept; older ones are removed when a new one is whole. 0: all.");
ABSL_FLAG(
    bool, resume, false,
    "Resume from the newest valid checkpoint in --checkpoint_dir, or start anew if there is none: the same command "
    "line starts a training and resumes it.");
ABSL_FLAG(std::string, resume_from, "",
          "Resume from this checkpoint, a folder step-N; with --resume only if there is none in --checkpoint_dir.");
ABSL_FLAG(std::string, preemption_signals, kPreemptionSignals,
          "With --checkpoint_dir: signals for which all ranks write a checkpoint after the same step and end with code "
          "128 + the signal's number. A second signal ends a rank at once. Empty: none.");

namespace narrowcast {

void check_folder(const program::CommandLine& line, const std::string& flag, const std::string& value) {
  TORCH_CHECK_VALUE(!line.given(flag) || !value.empty(), "--", flag, ": must name a folder");
}

job::CheckpointOptions read_checkpoints(const program::CommandLine& line) {
  check_folder(line, "checkpoint_dir", absl::GetFlag(FLAGS_checkpoint_dir));
  check_folder(line, "resume_from", absl::GetFlag(FLAGS_resume_from));
  if (absl::GetFlag(FLAGS_checkpoint_dir).empty()) {
    refuse(line, {"checkpoint_every", "keep_checkpoints", "resume", "preemption_signals"}, "without --checkpoint_dir");
  }
  if (absl::GetFlag(FLAGS_resume)) {
    refuse(line, {"overwrite"}, "with --resume, which resumes from what is there");
  }
  return {
      .folder = absl::GetFlag(FLAGS_checkpoint_dir),
      .every = absl::GetFlag(FLAGS_checkpoint_every),
      .keep = absl::GetFlag(FLAGS_keep_checkpoints),
      .resume = absl::GetFlag(FLAGS_resume),
      .resume_from = absl::GetFlag(FLAGS_resume_from),
      .preemption_signals = absl::GetFlag(FLAGS_checkpoint_dir).empty() ? "" : absl::GetFlag(FLAGS_preemption_signals)};
}

}  // namespace narrowcast

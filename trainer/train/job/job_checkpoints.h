// Which of a job's values its checkpoints bind, from which one it resumes, and who writes the next.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/checkpoint_writer.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {

// What a checkpoint binds, from the plan of a job (plan.h). The settings: model, data, optimizer, seed, hook,
// buckets. How often to look, report and save is free, and so is the number of steps with a constant schedule;
// with "wsd" it is until its decay begins, and so is that decay. The circumstances may change, but with them bits do:
// ranks, threads, accumulation, versions, the processor's instructions.
checkpoint::Description describe_job(const TrainJob& job, const nlohmann::json& plan);

// What a job has of checkpoints.
struct JobCheckpoints {
  std::unique_ptr<checkpoint::CheckpointWriter> writer;  // none: the job writes no checkpoints
  std::optional<checkpoint::Restored> restored;          // from which the training resumes; none: a new training
  bool same_training = false;                            // that is one of this job's own: so are files in output_dir
  std::string changes;  // since it was written: bits will differ (checkpoint::describe_changes)
};

// What a rank can check before it joins the others. Throws c10::ValueError naming the flag or the folder.
void check_checkpoint_options(const TrainJob& job);

// A collective. Says on rank 0 from which one it resumes, and which it skips. Throws c10::ValueError naming the flag
// and both values if the checkpoint is of another training, CorruptInputError if there are checkpoints but no valid
// one; both on all ranks alike.
JobCheckpoints open_checkpoints(const AgreedJob& agreed);

// For a dry run, which joins nobody: the checkpoint from which the job would resume, all of it read and compared, or
// "nothing". Throws as open_checkpoints does.
std::string resume_text(const TrainJob& job, const nlohmann::json& plan, std::ostream& warnings);

}  // namespace narrowcast::job

// The checkpoints of a job: the values that they bind, the one from which it resumes, and the writer of the next.
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

// The values that a checkpoint binds, from the plan of a job (plan.h):
//   - Settings must be the same: model, data, optimizer, seed, hook, buckets.
//   - Circumstances may change, and bits change with them: ranks, threads, accumulation, versions, the processor's
//     instructions.
//   - The intervals of evaluations, reports and checkpoints are free. The number of steps is free with a constant
//     schedule. With "wsd", the number of steps and the decay are free until the decay begins.
checkpoint::Description describe_job(const TrainJob& job, const nlohmann::json& plan);

// The checkpoints of a job.
struct JobCheckpoints {
  std::unique_ptr<checkpoint::CheckpointWriter> writer;  // null: the job writes no checkpoints
  std::optional<checkpoint::Restored> restored;          // from which the training resumes; empty: a new training
  bool same_training = false;                            // `restored` is this job's own, and so are files in output_dir
  std::string changes;  // since it was written, if bits will differ (checkpoint::describe_changes)
};

// The checks that a rank can make before it joins the others. Throws c10::ValueError naming the flag or the folder.
void check_checkpoint_options(const TrainJob& job);

// A collective. Prints on rank 0 from which checkpoint the job resumes, and which ones it skips. Throws, the same on
// all ranks: c10::ValueError naming the flag and both values if the checkpoint is from another training,
// CorruptInputError if there are checkpoints but no valid one.
JobCheckpoints open_checkpoints(const AgreedJob& agreed);

// For a dry run, which does not join other ranks: the checkpoint from which the job would resume, or "nothing". Reads
// the whole checkpoint and compares it with its manifest. Throws as open_checkpoints does.
std::string resume_text(const TrainJob& job, const nlohmann::json& plan, std::ostream& warnings);

}  // namespace narrowcast::job

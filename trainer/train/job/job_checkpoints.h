// The checkpoints of a training job: where it goes on from, and who writes the next ones.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/train/checkpoint/checkpoint_reader.h"
#include "trainer/train/checkpoint/checkpoint_writer.h"
#include "trainer/train/job/plan.h"

namespace narrowcast::job {

struct JobCheckpoints {
  std::unique_ptr<checkpoint::CheckpointWriter> writer;  // none: the job writes no checkpoints
  std::optional<checkpoint::Restored> restored;          // where the training goes on from; none: a new training
  bool same_training = false;                            // that is one of this job's own: so are files in output_dir
  std::string changes;                                   // what is other than then, so that bits differ; see settings.h
};

// What a rank can check before it joins the others. Throws c10::ValueError naming the flag or the folder.
void check_checkpoint_options(const TrainJob& job);

// A collective. Says on rank 0 what it goes on from, and what it skips. Throws c10::ValueError naming the flag and both
// values if the checkpoint is of another training, CorruptInputError if there are checkpoints but no valid one; both on
// all ranks alike.
JobCheckpoints open_checkpoints(const AgreedJob& agreed);

// For a dry run, which joins nobody: the checkpoint that the job would go on from, all of it read and compared, or
// "nothing". Throws as open_checkpoints does.
std::string resume_text(const TrainJob& job, const nlohmann::json& plan, std::ostream& warnings);

}  // namespace narrowcast::job

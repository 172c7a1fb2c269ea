// A job that trains, its checkpoints, and what it leaves in --output_dir: training_job.cpp, and in job_checkpoints.cpp
// which of the job's values checkpoints bind, from which one it resumes, and who writes the next. restarts.cpp: what it
// does for a launcher that starts it again.
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
#include "trainer/train/reporting/metrics.h"
#include "trainer/train/training/training_loop.h"

namespace narrowcast::job {

// What a checkpoint binds, from the plan of a job (train_job.h). The settings: model, data, optimizer, seed, hook,
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

// The name of the launcher's job (TORCHELASTIC_RUN_ID); empty if it has none, which launchers call "none", too.
std::string run_of(const WorkerEnv& env);

// The job as a launcher's restart is to run it: it resumes from checkpoints that the same run has written, also without
// --resume, and may replace the metrics of its own former start. Other jobs are returned as they are.
TrainJob as_restarted(TrainJob job, const WorkerEnv& env);

// What a rank can check before it joins the others. Throws c10::ValueError naming the flag or the folder.
void check_checkpoint_options(const TrainJob& job);

// A collective. Says on rank 0 from which one it resumes, and which it skips. Throws c10::ValueError naming the flag
// and both values if the checkpoint is of another training, CorruptInputError if there are checkpoints but no valid
// one; both on all ranks alike.
JobCheckpoints open_checkpoints(const AgreedJob& agreed);

// For a dry run, which joins nobody: the checkpoint from which the job would resume, all of it read and compared, or
// "nothing". Throws as open_checkpoints does.
std::string resume_text(const TrainJob& job, const nlohmann::json& plan, std::ostream& warnings);

// The paths of the files that a job leaves; the second one a job that trains a TorchScript module.
std::string model_path(const OutputOptions& output);
std::string script_path(const OutputOptions& output);
std::string metrics_path(const OutputOptions& output);

// Throws c10::ValueError naming a file of an earlier training that would be replaced unasked. Where the job resumes,
// what it finds may be its own: then only files of a training that came to its end are kept, and prepare_output
// decides.
void check_output(const TrainJob& job);

// Whether rank 0 could write there, as far as it can tell without making folders. Throws c10::ValueError naming the
// option, the path and the reason.
void check_places(const OutputOptions& output);

// A collective: rank 0 makes the folders, and finds out whether all that the job leaves can be written. Nothing that is
// there is changed. Throws c10::ValueError as check_places does, on all ranks alike.
void prepare_places(const AgreedJob& agreed);

// A collective, in places that are prepared: rank 0 opens its metrics, from which it removes what was written after the
// checkpoint. Returns them on rank 0, if the job writes files. Throws, on all ranks alike, c10::ValueError naming what
// cannot be written or would be replaced, OutputError where the disk has no space for what is written.
std::unique_ptr<reporting::Metrics> prepare_output(const AgreedJob& agreed, const JobCheckpoints& checkpoints);

// What a rank can check of a job that trains before it joins the others. Throws c10::ValueError naming the flag or the
// file.
void check_training_job(const TrainJob& job, int64_t world_size);

// A collective: trains. Rank 0 prints the results and writes the files. Returns an exit code as run_job does.
int run_training_job(const AgreedJob& agreed);

}  // namespace narrowcast::job

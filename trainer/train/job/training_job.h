// A job that trains, and its files in --output_dir.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/train/job/job_checkpoints.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::job {

// The paths of a job's files; script_path is for a job that trains a TorchScript module.
std::string model_path(const OutputOptions& output);
std::string script_path(const OutputOptions& output);
std::string metrics_path(const OutputOptions& output);

// Throws c10::ValueError naming a file of an earlier training that would be replaced without permission. If the job
// resumes, existing files may be its own. Then only files of a completed training are protected here, and
// prepare_output decides about the rest.
void check_output(const TrainJob& job);

// Whether rank 0 could write there, as far as this can be determined without making folders. Throws c10::ValueError
// naming the option, the path and the reason.
void check_places(const OutputOptions& output);

// A collective: rank 0 makes the folders, and checks whether all files of the job can be written. Existing files are
// not changed. Throws c10::ValueError as check_places does, on all ranks.
void prepare_places(const AgreedJob& agreed);

// A collective, after prepare_places: rank 0 opens its metrics and removes the lines that were written after the
// checkpoint. Returns them on rank 0, if the job writes files. Throws on all ranks: c10::ValueError naming a file that
// cannot be written or would be replaced, OutputError if the disk has no space.
std::unique_ptr<reporting::Metrics> prepare_output(const AgreedJob& agreed, const JobCheckpoints& checkpoints);

// Makes the checks of a training job that a rank can make before it joins the others. Throws c10::ValueError naming the
// flag or the file.
void check_training_job(const TrainJob& job, int64_t world_size);

// A collective: trains. Rank 0 prints the results and writes the files. Returns an exit code as run_job does.
int run_training_job(const AgreedJob& agreed);

}  // namespace narrowcast::job

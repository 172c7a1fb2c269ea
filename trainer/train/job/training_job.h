// A job that trains, and what it leaves in --output_dir.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/train/job/job_checkpoints.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::job {

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

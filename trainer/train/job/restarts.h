// Support for a launcher that restarts a job, or replaces the process of a lost rank alone.
#pragma once

#include <string>

#include <narrowcast/worker_env.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// The name of the launcher's job (TORCHELASTIC_RUN_ID). Empty without a name, or if the launcher calls it "none".
std::string run_of(const WorkerEnv& env);

// Whether the job has trained before this start of its processes, as far as one process knows.
bool has_restarted(const TrainJob& job, const WorkerEnv& env);

// The job as a launcher's restart runs it: it resumes from checkpoints that the same run has written, even without
// --resume, and may replace the metrics of the job's former start. Other jobs are returned unchanged.
TrainJob as_restarted(TrainJob job, const WorkerEnv& env);

// A collective: as_restarted with the same result on all ranks, as rank 0 sees the folder of checkpoints. Throws
// c10::DistBackendError if a peer fails.
TrainJob restarted_alike(const TrainJob& job, const JobContext& context, const ProcessGroupPtr& group);

// Whether this process recovers in place: its launcher does its part, and the job is a training on several ranks.
bool recovers_in_place(const TrainJob& job, const WorkerEnv& env);

// Sets the functions of `recovery` that tell of newcomers to this scope of the job's ranks, which must outlive their
// use.
void use_newcomers_of(const ProcessGroupScope& scope, InPlaceRecovery& recovery);

// A collective: changes the outer quorum of `job` to one that the groups of this group's ranks can have. If the job was
// started before, perhaps with more groups, the quorum becomes at most the number of groups. A quorum of all groups has
// no grace. `plan` gets both, and rank 0 prints a warning. Otherwise nothing changes, and OuterOptimizer refuses such a
// quorum.
void use_possible_quorum(const AgreedJob& begun, TrainJob& job, nlohmann::json& plan);

// The number of ranks for this rank's checks before it meets the others. If nodes may
// change, the launcher's number may count nodes that wait to join. Then this is the largest number up to the launcher's
// with which the batch can be shared. The others share it now, and are not hurt by this rank.
int64_t ranks_to_check(const TrainJob& job, const WorkerEnv& env);

// A collective: throws c10::ValueError on all ranks if their plans differ. If ranks have worked together before, it
// does so on a new process alone that differs from them. The others throw c10::DistBackendError, as if it had been
// lost.
void check_plans(const AgreedJob& begun);

// Whether the job could give its state to a node that joins: from the ranks' memory, or by a checkpoint.
bool can_take_in_newcomers(const AgreedJob& agreed);

// A collective of a job that recovers in place: finds the state from which the training continues in the memory of the
// ranks. If nobody has one, this process begins as a new one, and rank 0 prints why.
void recover_from_memory(const AgreedJob& begun);

// Why ranks that lived on could not continue from their memory. Empty if they could, or if all ranks are new.
std::string why_memory_is_lost(const AgreedJob& agreed);

// Whether the training continues from the memory of the ranks.
bool has_recovered(const AgreedJob& agreed);

}  // namespace narrowcast::job

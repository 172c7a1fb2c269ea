// Whether a job shards its optimizer over the ranks of each node.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// The checks that a rank can make alone. Throws c10::ValueError if the job asks for shards that it cannot have: with
// one rank, and with a hook whose ranks take different steps.
void check_optimizer_shards(const TrainJob& job, int64_t world_size);

// The same for the device on which the job computes: on a GPU.
void check_optimizer_shards_on(const TrainJob& job, at::Device device);

// A collective: whether the job shards its optimizer. With "auto" it does not if its ranks recover in place: a lost
// rank's shard would be lost, and with it the steps since the newest checkpoint. Throws c10::ValueError, on all ranks,
// if it asks for shards where no two ranks share a node.
bool shards_optimizer(const AgreedJob& agreed);

// A collective: adds to the plan of a training how many ranks of rank 0's node share the optimizer, if they do.
void add_optimizer_shards(nlohmann::json& plan, const AgreedJob& agreed);

// Prints that number on the job's progress, if the plan has it.
void print_optimizer_shards(const nlohmann::json& plan, const JobContext& context);

}  // namespace narrowcast::job

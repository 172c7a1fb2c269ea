// Whether a job shards its optimizer, and over which ranks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// Throws c10::ValueError if the job asks for shared parameters that it cannot have: without shards within nodes, with
// one rank, with a hook whose ranks take different steps, and in a verification.
void check_shared_parameters(const TrainJob& job, const WorkerEnv& env);

// The checks that a rank can make alone. Throws c10::ValueError if the job asks for shards that it cannot have: with a
// hook whose ranks take different steps, and if it begins with one rank.
void check_optimizer_shards(const TrainJob& job, const WorkerEnv& env);

// A collective: the job as the ranks of this group can run it. If a loss has left one node, shards have one copy, and
// if it has left one rank, or for shards within nodes one rank per node, there are no shards, until another node joins.
// Rank 0 then prints a warning. Throws c10::ValueError, on all ranks, if the job begins with one rank, or with second
// copies on one node.
TrainJob with_possible_shards(const AgreedJob& begun);

// The same for the device on which the job computes: on a GPU.
void check_optimizer_shards_on(const TrainJob& job, at::Device device);

// Adds the number of elements that Muon steps, if it is the optimizer. Throws as training::muon_matrices.
void add_muon_parameters(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs);

// A collective: how the job shards its optimizer; never kAuto. If ranks recover in place, "auto" shards only with
// several nodes, or if the job shares parameters, which needs shards. On one node a lost rank's shard would be lost,
// and with it the steps since the newest checkpoint.
// Throws c10::ValueError, on all ranks, if the job asks for shards within nodes, or shared parameters, where no two
// ranks share a node.
training::OptimizerShards optimizer_shards_of(const AgreedJob& agreed);

// A collective: adds to the plan of a training the bytes of rank 0's optimizer and, if ranks share it, how many do:
// those of rank 0's node, or all. Over all ranks, also the bytes of parameters that rank 0 sends per step, with those
// for second copies. Their number may be less than the job's flag says (with_possible_shards). With Muon, also the
// dtype of its products.
void add_optimizer_shards(nlohmann::json& plan, const AgreedJob& agreed);

// Prints that number on the job's progress, if the plan has it, and which parameters Muon steps.
void print_optimizer_shards(const nlohmann::json& plan, const JobContext& context);

}  // namespace narrowcast::job

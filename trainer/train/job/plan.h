// The plan of a job: everything that it is going to do, as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <narrowcast/process_group.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// What a job is going to do: a JSON object, the same on all ranks of a job that fits together.
// docs/reference/training.md lists its keys. Which ranks share a node is known only after they have met. A plan for one
// rank alone, as of a dry run, can take every `ranks_per_node` consecutive ranks for a node. A plan that must be equal
// on all ranks leaves it out: nodes may have different numbers of ranks. Then each rank is a node in the numbers of
// bytes.
nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size,
                         std::optional<int64_t> ranks_per_node = std::nullopt);

// A collective: adds what is known once the ranks have met, over which nodes the gradients are averaged and what
// sending between them costs; with a hook that knows of no nodes, which of several ranks share one. Nothing for a
// verification, which chooses nodes itself. The ranks of nodes of different sizes differ in "node_memory_bytes".
void add_nodes(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs, const ProcessGroupPtr& group);

// The value of "data_hash" in a plan: 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace narrowcast::job

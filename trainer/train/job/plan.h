// The plan of a job as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <narrowcast/process_group.h>
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// Makes the plan, a JSON object. It is the same on all ranks of a job whose options match. docs/reference/training.md
// lists its keys.
//
// Node membership is known only after rendezvous. A plan for one rank alone, as in a dry run, can treat every
// `ranks_per_node` consecutive ranks as a node. A plan that must be equal on all ranks omits it, because nodes may have
// different numbers of ranks. Byte counts then treat each rank as a node.
nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size,
                         std::optional<int64_t> ranks_per_node = std::nullopt);

// A collective: adds the entries that are known only after rendezvous. These are the nodes over which gradients or
// parameters are averaged, and the communication cost between them. With a hook that does not use nodes, it adds only
// which ranks share one. A verification gets no entries, because it chooses nodes itself. "node_memory_bytes" differs
// between ranks whose nodes have different sizes.
void add_nodes(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs, const ProcessGroupPtr& group);

// "NODES x RANKS (ROUNDING)" of a plan to which add_nodes has added nodes, for people.
std::string nodes_text(const nlohmann::json& plan);

// The value of "data_hash" in a plan: 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace narrowcast::job

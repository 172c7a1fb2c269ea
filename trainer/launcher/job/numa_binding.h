// NUMA binding as torchrun has it (--numa_binding): each worker of a node may use some of its processors.
//
// A worker is near the GPU whose number is its local rank, if this machine has as many GPUs as workers. Otherwise the
// workers are divided among the NUMA nodes in order: of 4 workers on 2 nodes, 0 and 1 are near node 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/launcher/posix/numa_topology.h"

namespace narrowcast::launcher {

// What the worker shares with others: torchrun's modes.
enum class NumaBinding {
  kNone,         // it may use what the launcher may use
  kNode,         // all processors of its NUMA node
  kSocket,       // all processors of the NUMA nodes of its node's socket
  kExclusive,    // an equal part of the cores of its NUMA node, which no other worker gets
  kCoreComplex,  // the processors of its NUMA node that share one largest cache, in turn
};

// "node", "socket", "exclusive" or "core-complex". Throws c10::ValueError naming `flag` and the text for anything else.
NumaBinding parse_numa_binding(const std::string& flag, const std::string& text);

// Where workers and processors of a node are.
struct NodeProcessors {
  std::vector<Processor> usable = {};       // in ascending order
  std::vector<int64_t> nodes_of_gpus = {};  // the NUMA node of each GPU
};

// The numbers of the processors that each of `workers` may use, in ascending order, by local rank; empty lists for
// kNone. Throws c10::ValueError naming the local rank where its NUMA node has no usable processor, or, for kExclusive,
// fewer cores than workers share it.
std::vector<std::vector<int64_t>> bind_workers(NumaBinding binding, int64_t workers, const NodeProcessors& node);

}  // namespace narrowcast::launcher

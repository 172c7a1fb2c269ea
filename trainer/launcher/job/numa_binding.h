// NUMA binding like torchrun's (--numa_binding): limits each worker of a node to some of the processors.
//
// If the machine has at least as many GPUs as workers, a worker is bound near the GPU whose number is its local rank.
// Otherwise the workers are divided among the NUMA nodes in order: of 4 workers on 2 nodes, 0 and 1 are on node 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/launcher/posix/numa_topology.h"

namespace narrowcast::launcher {

// Torchrun's modes: which processors a worker may use.
enum class NumaBinding {
  kNone,         // all processors that the launcher may use
  kNode,         // all processors of its NUMA node
  kSocket,       // all processors of all NUMA nodes of that node's socket
  kExclusive,    // an equal, exclusive part of the cores of its NUMA node
  kCoreComplex,  // the processors of a core complex (largest shared cache) of its NUMA node, in turn
};

// Parses "node", "socket", "exclusive" or "core-complex". Throws c10::ValueError naming `flag` and the text for
// anything else.
NumaBinding parse_numa_binding(const std::string& flag, const std::string& text);

// The processors and GPUs of a node.
struct NodeProcessors {
  std::vector<Processor> usable = {};       // in ascending order
  std::vector<int64_t> nodes_of_gpus = {};  // the NUMA node of each GPU
};

// Returns the numbers of the processors of each of `workers`, by local rank, in ascending order; empty lists for kNone.
// Throws c10::ValueError naming the local rank if its NUMA node has no usable processor. With kExclusive it also throws
// if the node has fewer cores than workers or GPUs share it.
std::vector<std::vector<int64_t>> bind_workers(NumaBinding binding, int64_t workers, const NodeProcessors& node);

}  // namespace narrowcast::launcher

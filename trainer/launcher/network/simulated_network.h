// A network of several machines, simulated on one: each rank has a network namespace with one interface, whose rate is
// limited in both directions, and a switch in the launcher's own namespace connects them.
//
//     rank 0: eth0 198.18.0.2 ---- port0 --+
//     rank 1: eth0 198.18.0.3 ---- port1 --+-- switch 198.18.0.1: the launcher, and the job's store
//
// eth0 and its port are the two ends of a veth pair. A token bucket (tc-tbf(8)) on eth0 limits what the rank sends, and
// one on the port limits what it receives. A delay (tc-netem(8)) is on the port, so that each packet waits for it once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::launcher {

// The network cards and wires of a simulated network.
struct NetworkShape {
  double gbit = 1;  // Gbit/s of each rank's interface, in each direction; headers of Ethernet, IP and TCP count
  double us = 0;    // microseconds by which each packet is delayed on its way to another rank; 0: not at all
};

// Throws c10::ValueError naming the flag and its value: --simulate_gbit must be from 0.001 to 100, --simulate_us from 0
// to 1,000,000.
void check_shape(const NetworkShape& shape);

// "1 Gbit/s", or "1 Gbit/s, 50 us".
std::string shape_text(const NetworkShape& shape);

// The namespaces of all ranks; they exist until this object is gone and no process is in them.
class SimulatedNetwork {
 public:
  static constexpr const char* kStoreAddress = "198.18.0.1";  // of the networks that RFC 2544 reserves for benchmarks
  static constexpr const char* kInterface = "eth0";           // of each rank
  static constexpr int64_t kMostRanks = 1000;                 // a bridge of Linux has 1023 ports

  // Makes the network for `ranks` ranks. The calling thread must be in a private network (enter_private_network), and
  // is there again afterwards. Throws c10::ValueError for a shape that check_shape refuses or too many ranks, and with
  // the kernel's reason if it refuses a step, for instance because it lacks sch_tbf or sch_netem.
  SimulatedNetwork(const NetworkShape& shape, int64_t ranks);

  // By rank, the descriptor of the namespace, as setns(2) takes it. Owned by this object.
  std::vector<int> namespaces() const;

 private:
  std::vector<FileDescriptor> namespaces_;
};

}  // namespace narrowcast::launcher

// A network of several machines, simulated on one. Each rank has a network namespace with one interface, whose rate is
// limited in both directions. A switch in the launcher's namespace connects the interfaces.
//
//     rank 0: eth0 198.18.0.2 ---- port0 --+
//     rank 1: eth0 198.18.0.3 ---- port1 --+-- switch 198.18.0.1: the launcher, and the job's store
//
// eth0 and its port are the two ends of a veth pair. A token bucket (tc-tbf(8)) on eth0 limits the rank's sending rate,
// and one on the port its receiving rate. The delay (tc-netem(8)) is only on the port, so each packet is delayed once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/common/file_descriptor.h"

namespace narrowcast::launcher {

// The NICs and wires of a simulated network.
struct NetworkShape {
  double gbit = 1;  // Gbit/s of each interface in each direction, including headers of Ethernet, IP and TCP
  double us = 0;    // delay of each packet to another rank, in microseconds; 0: none
};

// Throws c10::ValueError naming the flag and its value: --simulate_gbit must be from 0.001 to 100, --simulate_us from 0
// to 1,000,000.
void check_shape(const NetworkShape& shape);

// "1 Gbit/s", or "1 Gbit/s, 50 us".
std::string shape_text(const NetworkShape& shape);

// The namespaces of all ranks. A namespace exists until this object is destroyed and no process is in it.
class SimulatedNetwork {
 public:
  static constexpr const char* kStoreAddress = "198.18.0.1";  // from the networks that RFC 2544 reserves for benchmarks
  static constexpr const char* kInterface = "eth0";           // name of each rank's interface
  static constexpr int64_t kMostRanks = 1000;                 // a bridge of Linux has 1023 ports

  // Makes the network for `ranks` ranks. The calling thread must be in a private network (enter_private_network) and
  // returns to it. Throws c10::ValueError for too many ranks, for a shape that check_shape refuses, and with the
  // kernel's reason if a step fails, for instance because sch_tbf or sch_netem is missing.
  SimulatedNetwork(const NetworkShape& shape, int64_t ranks);

  // Returns each rank's namespace descriptor, for setns(2). This object owns the descriptors.
  std::vector<int> namespaces() const;

 private:
  std::vector<FileDescriptor> namespaces_;
};

}  // namespace narrowcast::launcher

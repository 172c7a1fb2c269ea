// How a process of a job is connected to the others, from narrowcast-run's variable.
#pragma once

#include <string>

#include <narrowcast/worker_env.h>

namespace narrowcast::network {

// The variable with narrowcast-run's description of a simulated network for its workers, e.g. "1 Gbit/s, 50 us".
inline constexpr const char* kSimulatedVariable = "NARROWCAST_SIMULATED_NETWORK";

// Whether the network is simulated: then each rank is a separate node, although all ranks share a machine.
bool is_simulated(const EnvironmentVariables& variables);

// For plans and results: "simulated, 1 Gbit/s", "loopback alone" or "shared". The last two depend on the interfaces
// that this process sees.
std::string describe_network(const EnvironmentVariables& variables);

}  // namespace narrowcast::network

// How a process of a job is connected to the others, as narrowcast-run told it.
#pragma once

#include <string>

#include <narrowcast/worker_env.h>

namespace narrowcast::network {

// The variable in which narrowcast-run describes a simulated network to its workers, for instance "1 Gbit/s, 50 us".
inline constexpr const char* kSimulatedVariable = "NARROWCAST_SIMULATED_NETWORK";

// Whether the network is simulated: then each rank is a node of its own, although all share a machine.
bool is_simulated(const EnvironmentVariables& variables);

// For plans and results: "simulated, 1 Gbit/s", "loopback alone" or "shared". The last two depend on the interfaces
// that this process sees.
std::string describe_network(const EnvironmentVariables& variables);

}  // namespace narrowcast::network

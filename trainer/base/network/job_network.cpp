#include "trainer/base/network/job_network.h"

#include "trainer/base/network/addresses.h"

namespace narrowcast::network {

bool is_simulated(const EnvironmentVariables& variables) {
  return !text_or_empty(variables, kSimulatedVariable).empty();
}

std::string describe_network(const EnvironmentVariables& variables) {
  if (is_simulated(variables)) {
    return "simulated, " + text_or_empty(variables, kSimulatedVariable);
  }
  return has_only_loopback() ? "loopback alone" : "shared";
}

}  // namespace narrowcast::network

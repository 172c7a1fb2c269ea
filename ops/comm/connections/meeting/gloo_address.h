// The networks of a Gloo backend.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace narrowcast::connections {

// The IP address of the backend's first device, over which other ranks reach this rank. c10::ValueError if the backend
// is not Gloo's.
std::string gloo_address(c10d::Backend& backend);

// The number of networks: Gloo chooses the network of a message by its tag. c10::ValueError as above.
int gloo_networks(c10d::Backend& backend);

}  // namespace narrowcast::connections

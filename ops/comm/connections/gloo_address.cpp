// Includes ProcessGroupGloo.hpp, which is slow to parse and needs Gloo's headers.
#include "ops/comm/connections/gloo_address.h"

#include <c10/util/Exception.h>
#include <gloo/transport/device.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace narrowcast::connections {

// A device describes itself as "tcp, pci=..., iface=eth0, speed=..., addr=[10.0.0.1]". It has no other function that
// returns its address.
std::string gloo_address(c10d::Backend& backend) {
  auto* const gloo = dynamic_cast<c10d::ProcessGroupGloo*>(&backend);
  TORCH_CHECK_VALUE(gloo != nullptr, "the group's backend for CPU tensors is not Gloo");
  const auto& devices = gloo->getOptions()->devices;
  const std::string text = devices.empty() ? "no device" : devices.front()->str();
  constexpr std::string_view kBegin = "addr=[";
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(']', begin);
  TORCH_CHECK_VALUE(begin != std::string::npos && end != std::string::npos, "Gloo does not name its address, but has ",
                    text);
  return text.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

}  // namespace narrowcast::connections

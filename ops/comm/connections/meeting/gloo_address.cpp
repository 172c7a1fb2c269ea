// Includes ProcessGroupGloo.hpp, which is slow to parse and needs Gloo's headers.
#include "ops/comm/connections/meeting/gloo_address.h"

#include <c10/util/Exception.h>
#include <gloo/transport/device.h>

#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace narrowcast::connections {
namespace {

const std::vector<std::shared_ptr<gloo::transport::Device>>& devices_of(c10d::Backend& backend) {
  auto* const gloo = dynamic_cast<c10d::ProcessGroupGloo*>(&backend);
  TORCH_CHECK_VALUE(gloo != nullptr, "the group's backend for CPU tensors is not Gloo");
  return gloo->getOptions()->devices;
}

}  // namespace

// A device describes itself as "tcp, pci=..., iface=eth0, speed=..., addr=[10.0.0.1]". It has no other function that
// returns its address.
std::string gloo_address(c10d::Backend& backend) {
  const auto& devices = devices_of(backend);
  const std::string text = devices.empty() ? "no device" : devices.front()->str();
  constexpr std::string_view kBegin = "addr=[";
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(']', begin);
  TORCH_CHECK_VALUE(begin != std::string::npos && end != std::string::npos, "Gloo does not name its address, but has ",
                    text);
  return text.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

int gloo_networks(c10d::Backend& backend) { return static_cast<int>(devices_of(backend).size()); }

}  // namespace narrowcast::connections

// The expectations of the conformance suite for each hook. A new hook adds one case.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// A bucket's gradients, by rank.
using Gradients = std::vector<at::Tensor>;

struct HookCase {
  std::string name;
  std::optional<int64_t> channel_size = std::nullopt;
  WireOptions wire = {};
  // The expected result of rank `rank`: the plain sequential computation.
  std::function<at::Tensor(const Gradients& gradients, int64_t rank)> expected;
  // Largest absolute error per element; null: equal bits.
  std::function<at::Tensor(const Gradients& gradients)> tolerance;
  // Bytes that rank `rank` sends.
  std::function<int64_t(const at::Tensor& gradient, int64_t rank, int64_t world_size)> payload_bytes;
  // Whether all ranks end with the same bits.
  bool averages = true;
  bool in_one_node = false;

  // Part of a test's name.
  std::string label() const {
    if (channel_size) return name + "_" + std::to_string(*channel_size);
    if (wire.node_size.value_or(1) > 1) return name + "_nodes_of_" + std::to_string(*wire.node_size);
    return in_one_node ? name + "_in_one_node" : name;
  }
};

// At least one case per hook of the table.
std::vector<HookCase> hook_cases();

// The cases that are the same on GPUs: all except auto, whose choice depends on the device.
std::vector<HookCase> gpu_hook_cases();

}  // namespace narrowcast::hooks

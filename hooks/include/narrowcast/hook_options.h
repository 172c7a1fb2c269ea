// How hooks are made.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/wire_formats.h>

namespace narrowcast::hooks {

// What quantized_allreduce and its short names can be told. docs/hooks.md says when which of them pays.
struct WireOptions {
  // How gradients travel; without a value int8_b128, or what the short name stands for, which takes no other.
  std::optional<WireFormat> format = std::nullopt;

  // Rounds up or down at random, with the gradient as the expected value; all ranks give the same seed. Without a value
  // to the nearest.
  std::optional<int64_t> stochastic_rounding_seed = std::nullopt;

  // What rounding leaves out in one step is added in the next one, on both hops. Takes 4 bytes per parameter, and
  // 4 / W more.
  bool error_feedback = false;

  // Gradients of parameters with one dimension or none (biases, norms) travel as float32.
  bool exempt_one_dimensional = false;

  bool operator==(const WireOptions&) const = default;
};

// Elements that share a scale with quantize_per_channel unless the options say otherwise, as in PyTorch's hook.
inline constexpr int64_t kDefaultChannelSize = 512;

// What every hook is made from.
struct HookOptions {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  // Whose ranks average their gradients.
  // What is given here is a c10::ValueError with hooks that do not take it:
  WireOptions wire = {};
  std::optional<int64_t> channel_size = std::nullopt;  // Of quantize_per_channel, >= 1: elements that share a scale.
};

}  // namespace narrowcast::hooks

#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/wire_options.h>

namespace narrowcast::hooks {

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

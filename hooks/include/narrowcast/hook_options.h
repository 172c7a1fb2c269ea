// How hooks are made.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>
#include <narrowcast/wire_formats.h>

namespace narrowcast::hooks {

// In how many levels gradients are averaged where several ranks share a node, and with it its network card.
enum class Levels {
  kAuto,  // Two where two ranks share a node, else one.
  kOne,   // Every rank exchanges with every other.
  kTwo,   // The ranks of a node sum in its memory, and each byte crosses its card once; an error where none share one.
};

// "auto", "one", "two". c10::ValueError for a number that is no Levels.
NARROWCAST_EXPORT std::string_view to_string(Levels levels);

// The inverse of to_string. c10::ValueError for other names.
NARROWCAST_EXPORT Levels parse_levels(std::string_view name);

// What quantized_allreduce and its short names can be told, and auto for those that it may take. docs/hooks.md says
// when which of them pays.
struct WireOptions {
  // How gradients travel; without a value int8_b128, or what the short name stands for, which takes no other.
  std::optional<WireFormat> format = std::nullopt;

  // Rounds up or down at random, with the gradient as the expected value; all ranks give the same seed. Without a value
  // to the nearest.
  std::optional<int64_t> stochastic_rounding_seed = std::nullopt;

  // What rounding leaves out in one step is added in the next one, on both hops. Takes 4 bytes per parameter that a
  // rank sends, and up to as much for means.
  bool error_feedback = false;

  // Gradients of parameters with one dimension or none (biases, norms) travel as float32.
  bool exempt_one_dimensional = false;

  // Of gradients on the CPU; on GPUs there is one level so far.
  Levels levels = Levels::kAuto;

  // Takes every so many consecutive ranks for a node, >= 1, instead of finding out which ranks share one. They must be
  // able to share memory. With 1 there is one level.
  std::optional<int64_t> node_size = std::nullopt;

  // What is known of the network between nodes, instead of what is measured when the hook is made: Gbit/s of a node's
  // card, which its ranks share, and microseconds until a small message has arrived. Both > 0.
  std::optional<double> link_gbit = std::nullopt;
  std::optional<double> link_us = std::nullopt;

  // Of the hook auto alone: formats of so many bits or more may be taken, 4 to 8. Without a value 8.
  std::optional<int64_t> auto_bits = std::nullopt;

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

// How hooks are made.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <variant>
#include <vector>

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

// The least and the usual WireOptions::auto_bits.
inline constexpr int64_t kFewestAutoBits = 4;
inline constexpr int64_t kDefaultAutoBits = 8;

// Of WireOptions::link_gbit and link_us: what sums and products of seconds stay finite with, and more than there is.
inline constexpr double kLeastLinkGbit = 1e-6;
inline constexpr double kMostLinkGbit = 1e6;
inline constexpr double kLeastLinkUs = 1e-3;
inline constexpr double kMostLinkUs = 1e9;

// What quantized_allreduce and its short names can be told, and auto for those that it may take; of that, levels and
// node_size also the power_sgd hooks. docs/hooks.md says when which of them pays.
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

  Levels levels = Levels::kAuto;

  // Takes every so many consecutive ranks for a node, >= 1, instead of finding out which ranks share one. They must be
  // able to share memory. With 1 there is one level.
  std::optional<int64_t> node_size = std::nullopt;

  // What is known of the network between nodes, instead of what is measured when the hook is made: Gbit/s of a node's
  // card, which its ranks share, kLeastLinkGbit to kMostLinkGbit, and microseconds until a small message has arrived,
  // kLeastLinkUs to kMostLinkUs.
  std::optional<double> link_gbit = std::nullopt;
  std::optional<double> link_us = std::nullopt;

  // The hook auto alone takes this: formats of so many bits or more, kFewestAutoBits to kDefaultAutoBits.
  std::optional<int64_t> auto_bits = std::nullopt;

  bool operator==(const WireOptions&) const = default;
};

// What post_local_sgd can be told.
struct LocalOptions {
  // Iterations at the beginning in which all ranks average their gradients, >= 0: the others average in groups.
  int64_t start = 0;

  // So many consecutive ranks are a group, >= 1, of which the last one may have fewer; ranks of a group of 1 exchange
  // nothing. Without a value the ranks of each node are one.
  std::optional<int64_t> group_size = std::nullopt;

  // The hook by which groups, and all ranks before `start`, average: one that keeps replicas equal, with its own
  // defaults; none of the power_sgd hooks.
  std::string hook = "allreduce";

  bool operator==(const LocalOptions&) const = default;
};

// What PowerSGD feeds back.
enum class PowerSgdMemory {
  kLocal,     // What was lost of a rank's own low-rank product; it keeps nothing of the means.
  kAveraged,  // What its gradients lack of the mean, as in PyTorch's hook, whose bits this has.
};

// "local", "averaged". c10::ValueError for a number that is no PowerSgdMemory.
NARROWCAST_EXPORT std::string_view to_string(PowerSgdMemory memory);

// The inverse of to_string. c10::ValueError for other names.
NARROWCAST_EXPORT PowerSgdMemory parse_power_sgd_memory(std::string_view name);

// What the power_sgd hooks can be told, under PyTorch's names and with its defaults where it has them. docs/hooks.md
// says what they do.
struct PowerSgdOptions {
  std::optional<int64_t> rank = std::nullopt;  // matrix_approximation_rank, >= 1; without a value what the name says
  int64_t start = 1000;                        // start_powerSGD_iter, >= 0: so many steps are averaged as by allreduce
  double min_rate = 2;                         // min_compression_rate, > 0; not of the batched hooks
  bool error_feedback = true;                  // use_error_feedback
  bool warm_start = true;  // Each step begins with the factor of the one before, instead of a random one.
  double epsilon = 0;      // orthogonalization_epsilon, >= 0; not of the batched hooks
  int64_t seed = 0;        // random_seed, 0 to 2^32 - 1
  bool batch = false;      // batch_tensors_with_same_shape; not of the batched hooks
  // Each step sends one of the two factors, and takes the other one from the step before. Needs warm_start.
  bool alternate = false;
  PowerSgdMemory memory = PowerSgdMemory::kLocal;  // What is fed back where error_feedback is on.
  WireFormat wire = WireFormat::kFp32;             // In which the factors, and what is not compressed, travel.

  bool operator==(const PowerSgdOptions&) const = default;
};

// Elements that share a scale with quantize_per_channel unless the options say otherwise, as in PyTorch's hook.
inline constexpr int64_t kDefaultChannelSize = 512;

// What every hook is made from.
struct HookOptions {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group = {};  // Its ranks average their gradients.
  // What is given here is a c10::ValueError with hooks that do not take it:
  WireOptions wire = {};
  std::optional<int64_t> channel_size = std::nullopt;  // quantize_per_channel's elements that share a scale, >= 1.
  LocalOptions local = {};                             // post_local_sgd takes these,
  PowerSgdOptions power_sgd = {};                      // and the power_sgd hooks these.
};

// What an option is about. Hooks take all options of a kind, or none.
enum class OptionKind {
  kFormat,              // WireOptions::format
  kRounding,            // How formats round.
  kLevels,              // Levels, and which ranks are a node.
  kLink,                // What is known of the network.
  kChoice,              // What the hook auto may take.
  kChannels,            // HookOptions::channel_size
  kLocal,               // LocalOptions
  kPowerSgd,            // PowerSgdOptions,
  kPowerSgdOfMatrices,  // and those of them that choose between the matrices of a bucket.
  kErrorFeedback,       // What becomes of what formats leave out,
  kExemption            // and what they leave alone.
};

// Enumerators are their names. std::monostate: without a value.
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::string>;

// "none" without a value, "true", "false".
NARROWCAST_EXPORT std::string text_of(const OptionValue& value);

// An option as command lines and errors have it.
struct NamedOption {
  std::string name;
  OptionKind kind;
  OptionValue value;
  bool is_given = false;  // Whether it is not as it is by itself.
};

// All but the process group, in the order of the structs.
NARROWCAST_EXPORT std::vector<NamedOption> named_options(const HookOptions& options);

}  // namespace narrowcast::hooks

// Options of hooks.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <variant>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/levels.h>
#include <narrowcast/wire_formats.h>

namespace narrowcast {
namespace NARROWCAST_EXPORT hooks {

// The option and its names are the operators' as well.
using narrowcast::Levels;
using narrowcast::parse_levels;
using narrowcast::to_string;

// Bits per element: of a code without its scale; in variable formats, of the whole message on average.
inline constexpr int64_t kFewestAutoBits = 4;   // least value of WireOptions::auto_bits
inline constexpr int64_t kDefaultAutoBits = 8;  // its default and largest value

// Ranges of WireOptions::link_gbit and link_us. Sums and products of seconds stay finite, and every real network fits.
inline constexpr double kLeastLinkGbit = 1e-6;  // a kilobit per second
inline constexpr double kMostLinkGbit = 1e6;    // a petabit per second
inline constexpr double kLeastLinkUs = 1e-3;    // a nanosecond
inline constexpr double kMostLinkUs = 1e9;      // 1000 seconds

// WireOptions::connections: the ranks measure the link, and choose a number together. Its name is "auto".
inline constexpr int64_t kAutoConnections = std::numeric_limits<int64_t>::min();

// Options of quantized_allreduce and its short names, and of auto for the hooks that it chooses from. The power_sgd
// hooks take only levels, node_size, connections and the link. docs/reference/hooks.md describes when to use each.
struct WireOptions {
  // Wire format of gradients. Default: int8_b128. A short name implies its format and does not take this option.
  std::optional<WireFormat> format = std::nullopt;

  // Seed of stochastic rounding, the same on all ranks; the expected value of a rounded gradient is the gradient.
  // Without a value, rounds to nearest.
  std::optional<int64_t> stochastic_rounding_seed = std::nullopt;

  // Adds the rounding error of each step to the next one, on both hops. Memory: 4 bytes per parameter that a rank
  // sends, and up to as much again for means.
  bool error_feedback = false;

  // Sends gradients of parameters with at most one dimension (biases, norms) as float32.
  bool exempt_one_dimensional = false;

  Levels levels = Levels::kAuto;

  // Treats each run of this number of consecutive ranks, >= 1, as a node, instead of detecting nodes. The ranks of a
  // node must be able to share memory. With 1 there is one level.
  std::optional<int64_t> node_size = std::nullopt;

  // Network between nodes; a value given here is not measured when the hook is made.
  // - link_gbit: bandwidth in Gbit/s of a node's NIC, which its ranks share; kLeastLinkGbit to kMostLinkGbit.
  // - link_us: latency of a small message in microseconds; kLeastLinkUs to kMostLinkUs.
  std::optional<double> link_gbit = std::nullopt;
  std::optional<double> link_us = std::nullopt;

  // Number of TCP connections over which a rank exchanges messages with each of its peers on other nodes, 1 to 64, or
  // kAutoConnections. More than one fill a long link. Results have the same bits for every number. The group keeps the
  // connections: without a value, those of an earlier hook or, at first, the one connection of the process group. Only
  // for the CPU.
  std::optional<int64_t> connections = std::nullopt;

  // Only for the hook auto: least bits of the formats that it may choose, kFewestAutoBits to kDefaultAutoBits.
  std::optional<int64_t> auto_bits = std::nullopt;

  bool operator==(const WireOptions&) const = default;
};

// Options of post_local_sgd.
struct LocalOptions {
  // Number of first iterations in which all ranks average their gradients, >= 0. Later ones average in groups.
  int64_t start = 0;

  // Number of consecutive ranks in a group, >= 1; the last group may be smaller. Ranks of a group of 1 send nothing.
  // Without a value the ranks of each node are a group.
  std::optional<int64_t> group_size = std::nullopt;

  // The hook that averages in groups, and over all ranks before `start`, with default options. It must keep replicas
  // equal and not be a power_sgd hook.
  std::string hook = "allreduce";

  bool operator==(const LocalOptions&) const = default;
};

// PowerSGD's error feedback.
enum class PowerSgdMemory {
  kLocal,     // Error of the rank's own low-rank product; the error of the mean is dropped.
  kAveraged,  // Gradient minus mean, as in PyTorch's hook; reproduces PyTorch's bits.
};

// "local", "averaged". c10::ValueError for an invalid value.
std::string_view to_string(PowerSgdMemory memory);

// The inverse of to_string. c10::ValueError for other names.
PowerSgdMemory parse_power_sgd_memory(std::string_view name);

// Options of the power_sgd hooks, with PyTorch's names and defaults where they exist. docs/reference/hooks.md describes
// them.
struct PowerSgdOptions {
  std::optional<int64_t> rank = std::nullopt;  // matrix_approximation_rank, >= 1; default: the rank in the hook's name
  int64_t start = 1000;        // start_powerSGD_iter, >= 0: number of first steps averaged like allreduce
  double min_rate = 2;         // min_compression_rate, > 0; not for the batched hooks
  bool error_feedback = true;  // use_error_feedback
  bool warm_start = true;      // Each step begins with the factor of the step before, not a random one.
  double epsilon = 0;          // orthogonalization_epsilon, >= 0; not for the batched hooks
  int64_t seed = 0;            // random_seed, 0 to 2^32 - 1
  bool batch = false;          // batch_tensors_with_same_shape; not for the batched hooks
  // Each step sends one of the two factors, and takes the other one from the step before. Requires warm_start.
  bool alternate = false;
  PowerSgdMemory memory = PowerSgdMemory::kLocal;  // Kind of error feedback, if error_feedback is true.
  WireFormat wire = WireFormat::kFp32;             // Format of the factors and of uncompressed elements.

  bool operator==(const PowerSgdOptions&) const = default;
};

// Default number of elements that share a scale in quantize_per_channel, as in PyTorch's hook.
inline constexpr int64_t kDefaultChannelSize = 512;

// Arguments to make a hook.
// An option that the hook does not take is a c10::ValueError.
struct HookOptions {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group = {};  // Its ranks average their gradients.
  WireOptions wire = {};
  std::optional<int64_t> channel_size = std::nullopt;  // Elements that share a scale in quantize_per_channel, >= 1.
  LocalOptions local = {};                             // For post_local_sgd.
  PowerSgdOptions power_sgd = {};                      // For the power_sgd hooks.

  // Where the gradients are: CPU or CUDA, the same on all ranks. Without a value, CUDA if the group moves CUDA tensors.
  // So it must be given for gradients on the CPU in a group for both, as torch.distributed's "gloo" is.
  std::optional<c10::DeviceType> device = std::nullopt;
};

// Kinds of options. A hook takes all options of a kind, or none.
enum class OptionKind {
  kFormat,              // WireOptions::format
  kRounding,            // How formats round.
  kLevels,              // Levels, and the nodes.
  kLink,                // The network's bandwidth and latency.
  kConnections,         // WireOptions::connections
  kChoice,              // The hooks that auto may choose.
  kChannels,            // HookOptions::channel_size
  kLocal,               // LocalOptions
  kPowerSgd,            // PowerSgdOptions, except the next kind.
  kPowerSgdOfMatrices,  // PowerSgdOptions that the batched hooks do not have.
  kErrorFeedback,       // Error feedback.
  kExemption            // Exempt parameters.
};

// An enumerator is its name. std::monostate: no value.
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::string>;

// "none" for no value, "true", "false", or the value.
std::string text_of(const OptionValue& value);

// An option as in command lines and errors.
struct NamedOption {
  std::string name;
  OptionKind kind;
  OptionValue value;
  bool is_given = false;  // Whether it differs from its default.
};

// All options except the process group and the device, in the order of the structs.
std::vector<NamedOption> named_options(const HookOptions& options);

// Sets the option of that name, one of those of named_options. The value has the type of the member: an
// integer also for a double, a text for an enumerator; stochastic_rounding takes the seed or false, local_group a
// number or text. No value (std::monostate) sets the default. c10::ValueError for an unknown name, which lists the
// known ones, and for an unknown text; c10::TypeError for a value of a wrong type. Ranges are checked when the hook is
// made.
void set_option(HookOptions& options, const std::string& name, const OptionValue& value);

}  // namespace hooks
}  // namespace narrowcast

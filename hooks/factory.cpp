#include <narrowcast/hooks.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <narrowcast/wire_format.h>
#include "hooks/allreduce.h"
#include "hooks/bf16_compress.h"
#include "hooks/fp16_compress.h"
#include "hooks/noop.h"
#include "hooks/quantize_per_channel.h"
#include "hooks/quantize_per_tensor.h"
#include "hooks/quantized_allreduce.h"

namespace narrowcast::hooks {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<CommHook> (*make)(const HookOptions&);
  bool takes_channel_size = false;
};

constexpr std::string_view kNone = "none";

constexpr std::array<Entry, 6> kHooks{{
    {"allreduce", make_allreduce_hook},
    {"fp16_compress", make_fp16_compress_hook},
    {"bf16_compress", make_bf16_compress_hook},
    {"quantize_per_tensor", make_quantize_per_tensor_hook},
    {"quantize_per_channel", make_quantize_per_channel_hook, true},
    {"noop", make_noop_hook},
}};

// QuantizedAllReduceHook by its names.
struct WireEntry {
  std::string_view name;
  WireFormat format;
  bool takes_format = false;
};

constexpr std::array<WireEntry, 5> kWireHooks{{
    {"quantized_allreduce", WireFormat::kInt8B128, true},
    {"int8", WireFormat::kInt8B128},
    {"int6", WireFormat::kInt6B32},
    {"int4", WireFormat::kInt4B32},
    {"fp8", WireFormat::kFp8E4M3B32},
}};

// Null for a name that is none of them.
template <class Entries>
const typename Entries::value_type* find(const Entries& entries, const std::string& name) {
  const auto* const found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : found;
}

std::string joined_names() {
  std::string joined;
  for (const std::string& name : comm_hook_names()) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

// The first option that is not as it is by itself, as "NAME: VALUE".
std::string first_given(const WireOptions& options) {
  if (options.format) return c10::str("hook_format: ", to_string(*options.format));
  if (options.stochastic_rounding_seed) {
    return c10::str("stochastic_rounding: seed ", *options.stochastic_rounding_seed);
  }
  return options.error_feedback ? "error_feedback: true" : "exempt_one_dimensional: true";
}

}  // namespace

std::vector<std::string> comm_hook_names() {
  std::vector<std::string> names{std::string(kNone)};
  for (const Entry& entry : kHooks) names.emplace_back(entry.name);
  for (const WireEntry& entry : kWireHooks) names.emplace_back(entry.name);
  return names;
}

void check_comm_hook(const std::string& name, const WireOptions& wire, std::optional<int64_t> channel_size) {
  const WireEntry* const wire_hook = find(kWireHooks, name);
  TORCH_CHECK_VALUE(name == kNone || find(kHooks, name) != nullptr || wire_hook != nullptr, "hook: unknown name '",
                    name, "'; known: ", joined_names());
  TORCH_CHECK_VALUE(wire_hook != nullptr || wire == WireOptions{}, first_given(wire), " has no effect with the hook '",
                    name, "'; it is for quantized_allreduce and its short names");
  TORCH_CHECK_VALUE(wire_hook == nullptr || wire_hook->takes_format || !wire.format, first_given(wire),
                    " has no effect with the hook '", name,
                    "', which has a format of its own; it is for "
                    "quantized_allreduce");
  TORCH_CHECK_VALUE(!channel_size || takes_channel_size(name), "channel_size: ", *channel_size,
                    " has no effect with the hook '", name, "'; it is for quantize_per_channel");
  TORCH_CHECK_VALUE(!channel_size || *channel_size >= 1, "channel_size: must be at least 1, but is ", *channel_size);
}

bool takes_channel_size(const std::string& hook) {
  const Entry* const entry = find(kHooks, hook);
  return entry != nullptr && entry->takes_channel_size;
}

std::optional<int64_t> channel_size_of(const std::string& hook, std::optional<int64_t> channel_size) {
  return takes_channel_size(hook) ? std::optional(channel_size.value_or(kDefaultChannelSize)) : std::nullopt;
}

std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire) {
  const WireEntry* const entry = find(kWireHooks, hook);
  return entry == nullptr ? std::nullopt : std::optional(wire.format.value_or(entry->format));
}

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options) {
  check_comm_hook(name, options.wire, options.channel_size);
  if (name == kNone) return nullptr;
  TORCH_CHECK_VALUE(options.process_group, "process_group must be given to make the hook '", name, "', but is null");
  if (const Entry* const entry = find(kHooks, name)) return entry->make(options);
  HookOptions complete = options;
  complete.wire.format = wire_format_of(name, options.wire);
  return std::make_unique<QuantizedAllReduceHook>(find(kWireHooks, name)->name, complete);
}

}  // namespace narrowcast::hooks

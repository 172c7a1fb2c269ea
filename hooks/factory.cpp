#include <narrowcast/hooks.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <narrowcast/wire_format.h>
#include "hooks/hook_table.h"

namespace narrowcast::hooks {
namespace {

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
  std::vector<std::string> names;
  for (const HookRow& row : hook_rows()) names.push_back(row.name);
  return names;
}

void check_comm_hook(const std::string& name, const WireOptions& wire, std::optional<int64_t> channel_size) {
  const HookRow& row = hook_row(name);
  TORCH_CHECK_VALUE(row.format || wire == WireOptions{}, first_given(wire), " has no effect with the hook '", name,
                    "'; it is for ", hook_names_with(&HookRow::takes_format), " and its short names");
  TORCH_CHECK_VALUE(row.takes_format || !wire.format, first_given(wire), " has no effect with the hook '", name,
                    "', which has a format of its own; it is for ", hook_names_with(&HookRow::takes_format));
  TORCH_CHECK_VALUE(!channel_size || row.takes_channel_size, "channel_size: ", *channel_size,
                    " has no effect with the hook '", name, "'; it is for ",
                    hook_names_with(&HookRow::takes_channel_size));
  TORCH_CHECK_VALUE(!channel_size || *channel_size >= 1, "channel_size: must be at least 1, but is ", *channel_size);
}

bool takes_channel_size(const std::string& hook) { return hook_row(hook).takes_channel_size; }

std::optional<int64_t> channel_size_of(const std::string& hook, std::optional<int64_t> channel_size) {
  return takes_channel_size(hook) ? std::optional(channel_size.value_or(kDefaultChannelSize)) : std::nullopt;
}

std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire) {
  const HookRow& row = hook_row(hook);
  return row.format ? std::optional(wire.format.value_or(*row.format)) : std::nullopt;
}

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options) {
  check_comm_hook(name, options.wire, options.channel_size);
  const HookRow& row = hook_row(name);
  if (!row.make) return nullptr;
  TORCH_CHECK_VALUE(options.process_group, "process_group must be given to make the hook '", name, "', but is null");
  return row.make(options);
}

}  // namespace narrowcast::hooks

#include "trainer/ddp/options/option_values.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <string>

#include <narrowcast/hooks.h>
#include <narrowcast/version.h>
#include <narrowcast/wire_format.h>
#include "hooks/table/hook_table.h"

namespace narrowcast {
namespace {

bool has_blocks(WireFormat format) {
  return std::ranges::any_of(kWireFormatRows,
                             [=](const WireFormatRow& row) { return row.format == format && row.block > 1; });
}

}  // namespace

bool rounds_in_blocks(const DdpOptions& options) {
  const hooks::HookOptions of_hook = options.hook_options();
  const bool in_groups = options.hook() == hooks::kPostLocalSgdHook;
  const std::string& hook = in_groups ? of_hook.local.hook : options.hook();
  const std::optional<WireFormat> format = hooks::wire_format_of(hook, in_groups ? hooks::WireOptions{} : of_hook.wire);
  return format.has_value() ? has_blocks(*format) : hooks::takes_wire_options(hook);  // A choosing hook may use any.
}

std::vector<NamedValue> describe(const DdpOptions& options) {
  const auto on_off = [](bool value) { return std::string(value ? "true" : "false"); };
  std::vector<NamedValue> values = {{"narrowcast version", version()}, {"hook", options.hook()}};
  const hooks::HookOptions hook_options = hooks::effective_options(options.hook(), options.hook_options());
  for (const hooks::NamedOption& option : hooks::named_options(hook_options)) {
    values.push_back({option.name, hooks::text_of(option.value)});
  }
  values.insert(values.end(), {{"bucket_cap_mb", options.bucket_cap_mb() ? c10::str(*options.bucket_cap_mb()) : "auto"},
                               {"first_bucket_mb", c10::str(options.first_bucket_bytes_cap(), " bytes")},
                               {"find_unused_parameters", on_off(options.find_unused_parameters())},
                               {"gradient_as_bucket_view", on_off(options.gradient_as_bucket_view())},
                               {"static_graph", on_off(options.static_graph())},
                               {"broadcast_buffers", on_off(options.broadcast_buffers())},
                               {"init_sync", on_off(options.init_sync())},
                               {"order in buckets", rounds_in_blocks(options) ? "by blocks" : "as gradients come"}});
  return values;
}

}  // namespace narrowcast

#include "trainer/ddp/reducer/option_values.h"

#include <c10/util/StringUtil.h>

#include <string>

#include <narrowcast/hooks.h>
#include <narrowcast/version.h>
#include "hooks/table/hook_table.h"
#include "trainer/ddp/reducer/block_alignment.h"

namespace narrowcast {

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

#include "hooks/factory.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "hooks/basic/allreduce.h"
#include "hooks/basic/bf16_compress.h"
#include "hooks/basic/fp16_compress.h"
#include "hooks/basic/noop.h"
#include "hooks/quantized/quantize_per_channel.h"
#include "hooks/quantized/quantize_per_tensor.h"
#include "hooks/wire/quantized_allreduce.h"
#include "ops/wire_format.h"

namespace narrowcast::hooks {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<CommHook> (*make)(const HookOptions&);
  bool takes_wire_options = false;
};

constexpr std::string_view kNone = "none";

constexpr std::array<Entry, 11> kHooks{{
    {"allreduce", make_allreduce_hook},
    {"fp16_compress", make_fp16_compress_hook},
    {"bf16_compress", make_bf16_compress_hook},
    {"quantize_per_tensor", make_quantize_per_tensor_hook},
    {"quantize_per_channel", make_quantize_per_channel_hook},
    {"noop", make_noop_hook},
    {"quantized_allreduce", make_quantized_allreduce_hook, true},
    {"int8", make_int8_hook, true},
    {"int6", make_int6_hook, true},
    {"int4", make_int4_hook, true},
    {"fp8", make_fp8_hook, true},
}};

std::string joined_names() {
  std::string joined;
  for (const std::string& name : comm_hook_names()) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

// What of the options is of no use to a hook of another kind, as "NAME: VALUE"; empty if nothing is given.
std::string first_given(const WireOptions& options) {
  if (options.format) return c10::str("hook_format: ", to_string(*options.format));
  if (options.stochastic_rounding_seed)
    return c10::str("stochastic_rounding: seed ", *options.stochastic_rounding_seed);
  if (options.error_feedback) return "error_feedback: true";
  if (options.exempt_one_dimensional) return "exempt_one_dimensional: true";
  return "";
}

void check_wire_options(const std::string& name, const WireOptions& options) {
  TORCH_CHECK_VALUE(options == WireOptions{}, first_given(options), " has no effect with the hook '", name,
                    "'; it is for quantized_allreduce, int8, int6, int4 and fp8");
}

}  // namespace

std::vector<std::string> comm_hook_names() {
  std::vector<std::string> names{std::string(kNone)};
  std::transform(kHooks.begin(), kHooks.end(), std::back_inserter(names),
                 [](const Entry& entry) { return std::string(entry.name); });
  return names;
}

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options) {
  if (name == kNone) {
    check_wire_options(name, options.wire);
    return nullptr;
  }
  const auto* const entry =
      std::find_if(kHooks.begin(), kHooks.end(), [&](const Entry& known) { return known.name == name; });
  TORCH_CHECK_VALUE(entry != kHooks.end(), "hook must be one of ", joined_names(), ", but is '", name, "'");
  TORCH_CHECK_VALUE(options.process_group, "process_group must be given to make the hook '", name, "', but is null");
  if (!entry->takes_wire_options) check_wire_options(name, options.wire);
  return entry->make(options);
}

}  // namespace narrowcast::hooks

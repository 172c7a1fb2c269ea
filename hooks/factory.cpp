#include "hooks/factory.h"

#include <c10/util/Exception.h>

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

namespace narrowcast::hooks {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<CommHook> (*make)(const HookOptions&);
};

constexpr std::string_view kNone = "none";

constexpr std::array<Entry, 6> kHooks{{
    {"allreduce", make_allreduce_hook},
    {"fp16_compress", make_fp16_compress_hook},
    {"bf16_compress", make_bf16_compress_hook},
    {"quantize_per_tensor", make_quantize_per_tensor_hook},
    {"quantize_per_channel", make_quantize_per_channel_hook},
    {"noop", make_noop_hook},
}};

std::string joined_names() {
  std::string joined;
  for (const std::string& name : comm_hook_names()) joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

}  // namespace

std::vector<std::string> comm_hook_names() {
  std::vector<std::string> names{std::string(kNone)};
  std::transform(kHooks.begin(), kHooks.end(), std::back_inserter(names),
                 [](const Entry& entry) { return std::string(entry.name); });
  return names;
}

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options) {
  if (name == kNone) return nullptr;
  const auto* const entry =
      std::find_if(kHooks.begin(), kHooks.end(), [&](const Entry& known) { return known.name == name; });
  TORCH_CHECK_VALUE(entry != kHooks.end(), "hook must be one of ", joined_names(), ", but is '", name, "'");
  TORCH_CHECK_VALUE(options.process_group, "process_group must be given to make the hook '", name, "', but is null");
  return entry->make(options);
}

}  // namespace narrowcast::hooks

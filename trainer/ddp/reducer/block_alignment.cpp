#include "trainer/ddp/reducer/block_alignment.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include <narrowcast/hooks.h>
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

BucketIndices aligned_to_blocks(BucketIndices buckets, const std::vector<at::Tensor>& parameters) {
  for (std::vector<size_t>& bucket : buckets) {
    std::ranges::stable_sort(bucket, std::greater<>(),
                             [&](size_t index) { return filled_block(parameters[index].numel()); });
  }
  return buckets;
}

}  // namespace narrowcast

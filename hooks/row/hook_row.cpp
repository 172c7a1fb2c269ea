#include "hooks/row/hook_row.h"

#include <optional>
#include <utility>

#include "hooks/row/hook_options.h"

namespace narrowcast::hooks {

HookOptions filled_in(const HookRow& row, HookOptions options) {
  const auto filled = [](bool has_option, const auto& given, const auto& usual) {
    return has_option ? std::optional(given.value_or(usual)) : std::nullopt;
  };
  options.wire.format = filled(row.format.has_value(), options.wire.format, row.format.value_or(WireFormat::kFp32));
  options.channel_size = filled(row.takes(OptionKind::kChannels), options.channel_size, kDefaultChannelSize);
  options.power_sgd.rank = filled(row.takes(OptionKind::kPowerSgd), options.power_sgd.rank, row.power_sgd_rank);
  return options;
}

WireOptions supported_wire_options(const HookRow& row, WireOptions wire) {
  return with_only(std::move(wire), [&](OptionKind kind) { return row.takes(kind); });
}

}  // namespace narrowcast::hooks

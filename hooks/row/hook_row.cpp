#include "hooks/row/hook_row.h"

#include <optional>
#include <utility>

#include "hooks/row/hook_options.h"

namespace narrowcast::hooks {

HookOptions filled_in(const HookRow& row, HookOptions options) {
  const auto of_row = [](bool is_its, const auto& given, const auto& usual) {
    return is_its ? std::optional(given.value_or(usual)) : std::nullopt;
  };
  options.wire.format = of_row(row.format.has_value(), options.wire.format, row.format.value_or(WireFormat::kFp32));
  options.channel_size = of_row(row.takes(OptionKind::kChannels), options.channel_size, kDefaultChannelSize);
  options.power_sgd.rank = of_row(row.takes(OptionKind::kPowerSgd), options.power_sgd.rank, row.power_sgd_rank);
  return options;
}

WireOptions supported_wire_options(const HookRow& row, WireOptions wire) {
  return with_only(std::move(wire), [&](OptionKind kind) { return row.takes(kind); });
}

}  // namespace narrowcast::hooks

#include <narrowcast/hooks.h>

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/power_sgd/power_sgd.h"
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"
#include "ops/comm/connections/group/connections.h"

namespace narrowcast::hooks {
namespace {

// A reason if the hook takes other options of the same family.
std::string why_not_taken(const HookRow& row, OptionKind kind) {
  if (kind == OptionKind::kFormat && row.takes(OptionKind::kRounding)) {
    return row.chooses ? ", which chooses its formats" : ", which has a fixed format";
  }
  return kind == OptionKind::kPowerSgdOfMatrices && row.compresses_buckets() ? ", which treats a bucket as one matrix"
                                                                             : "";
}

void check_taken(const HookRow& row, const HookOptions& options) {
  for (const NamedOption& option : named_options(options)) {
    TORCH_CHECK_VALUE(!option.is_given || row.takes(option.kind), option.name, ": ", text_of(option.value),
                      " has no effect with the hook '", row.name, "'", why_not_taken(row, option.kind), "; it is for ",
                      hook_names_that_take(option.kind));
  }
}

void check_levels(const WireOptions& wire) {
  TORCH_CHECK_VALUE(!wire.node_size || *wire.node_size >= 1, "node_size: must be at least 1, but is ", *wire.node_size);
  TORCH_CHECK_VALUE(!wire.node_size || wire.levels != Levels::kOne, "node_size: ", *wire.node_size,
                    " has no effect with levels: one");
  TORCH_CHECK_VALUE(wire.node_size != 1 || wire.levels != Levels::kTwo,
                    "levels: two contradicts node_size: 1, which means one rank per node");
}

void check_connections(const std::optional<int64_t>& count) {
  const bool is_number = count && *count != kAutoConnections;
  TORCH_CHECK_VALUE(!is_number || (*count >= 1 && *count <= connections::kMostConnections),
                    "connections: must be auto or in 1..", connections::kMostConnections, ", but is ", *count);
}

// A sparse format drops most of each gradient. Without error feedback the dropped elements would never arrive.
void check_format(const WireOptions& wire) {
  if (!wire.format || !codec::wire::is_sparse(*wire.format)) {
    return;
  }
  TORCH_CHECK_VALUE(wire.error_feedback, "hook_format: ", *wire.format, " sends only ",
                    0.1 * codec::wire::kept_per_mille(*wire.format),
                    "% of the elements of a step. It needs error_feedback, which adds the others to the next step");
  TORCH_CHECK_VALUE(!wire.stochastic_rounding_seed, "stochastic_rounding: has no effect with the format ", *wire.format,
                    ", whose numbers are the means of kept elements");
}

void check_auto_bits(const std::optional<int64_t>& bits) {
  TORCH_CHECK_VALUE(!bits || (*bits >= kFewestAutoBits && *bits <= kDefaultAutoBits), "auto_bits: must be in ",
                    kFewestAutoBits, "..", kDefaultAutoBits, ", but is ", *bits);
}

void check_local(const LocalOptions& local) {
  TORCH_CHECK_VALUE(local.start >= 0, "outer_warmup: must be at least 0, but is ", local.start);
  TORCH_CHECK_VALUE(!local.group_size || *local.group_size >= 1, "local_group: must be at least 1, but is ",
                    *local.group_size);
  const HookRow& inner = hook_row(local.hook);
  TORCH_CHECK_VALUE(inner.make && inner.keeps_replicas_equal,
                    "local_hook: must be a hook that averages gradients, but is '", local.hook, "'");
  TORCH_CHECK_VALUE(!inner.approximates(), "local_hook: '", local.hook, "' would compress nothing in its first ",
                    PowerSgdOptions{}.start, " steps, and its options cannot be set here; use another hook");
}

}  // namespace

std::vector<std::string> comm_hook_names() {
  std::vector<std::string> names;
  for (const HookRow& row : hook_rows()) names.push_back(row.name);
  return names;
}

void check_hook_options(const std::string& name, const HookOptions& given) {
  const HookRow& row = hook_row(name);
  check_taken(row, given);
  check_auto_bits(given.wire.auto_bits);
  check_levels(given.wire);
  check_link(given.wire);
  check_connections(given.wire.connections);
  const HookOptions options = filled_in(row, given);
  TORCH_CHECK_VALUE(options.channel_size.value_or(1) >= 1, "channel_size: must be at least 1, but is ",
                    *options.channel_size);
  check_format(options.wire);
  check_local(options.local);
  if (row.takes(OptionKind::kPowerSgd)) {
    check_power_sgd(options.power_sgd);
  }
}

std::optional<int64_t> channel_size_of(const std::string& hook, std::optional<int64_t> channel_size) {
  return filled_in(hook_row(hook), {.process_group = nullptr, .channel_size = channel_size}).channel_size;
}

std::optional<int64_t> power_sgd_rank_of(const std::string& hook, const PowerSgdOptions& options) {
  return filled_in(hook_row(hook), {.process_group = nullptr, .power_sgd = options}).power_sgd.rank;
}

bool takes_wire_options(const std::string& hook) { return hook_row(hook).takes(OptionKind::kRounding); }

std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire) {
  return filled_in(hook_row(hook), {.wire = wire}).wire.format;
}

HookOptions effective_options(const std::string& hook, HookOptions options) {
  const HookRow& row = hook_row(hook);
  if (row.takes(OptionKind::kChoice)) {
    options.wire.auto_bits = auto_bits_of(options.wire);
  }
  return filled_in(row, std::move(options));
}

std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options) {
  return create_comm_hook(name, options.process_group, [&] { return options; });
}

}  // namespace narrowcast::hooks

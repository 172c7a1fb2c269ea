#include "trainer/train/flags/exchange_flags.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"

namespace narrowcast {
namespace {

// The options of averaging gradients. Random rounding has the training's seed.
hooks::WireOptions read_wire(const Given& given) {
  hooks::WireOptions wire = given.arguments.job.ddp.wire();
  if (given.arguments.stochastic_rounding) {
    wire.stochastic_rounding_seed = given.arguments.job.seed;
  }
  return wire;
}

// Whether the flag of an option of gradients also applies to averages of parameters. Other options have separate flags
// for parameters: --outer_format, --outer_error_feedback.
bool outer_takes(const hooks::NamedOption& option) {
  const std::vector<hooks::NamedOption> taken = OuterOptions().named();
  return std::ranges::find(taken, option.name, &hooks::NamedOption::name) != taken.end();
}

bool averages_in_groups(const hooks::NamedOption& option) { return option.kind == hooks::OptionKind::kLocal; }

}  // namespace

std::vector<std::string> local_flags() {
  std::vector<std::string> flags;
  for (const auto& options : {hooks::named_options({}), OuterOptions().named()}) {
    for (const hooks::NamedOption& option : options) {
      if (averages_in_groups(option)) flags.push_back(option.name);
    }
  }
  return flags;
}

std::vector<std::string> hook_flags() {
  std::vector<std::string> flags = local_flags();
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (!averages_in_groups(option)) flags.push_back(option.name);
  }
  return flags;
}

void refuse_other_hooks_options(const Given& given, const std::string& hook) {
  const hooks::HookRow& row = hooks::hook_row(hook);
  const bool is_local = row.averages_in_groups;
  const std::string with_hook = "with the hook '" + hook + "'";
  if (!is_local) {
    refuse(given, local_flags(), with_hook + "; it is for " + hooks::hook_names_that_take(hooks::OptionKind::kLocal));
  }
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (!row.takes(option.kind) && !(is_local && outer_takes(option))) {
      refuse(given, {option.name}, with_hook + (is_local ? "; --outer_format sets the format of parameters" : ""));
    }
  }
  const hooks::LocalOptions& local = given.arguments.job.ddp.local();
  if (is_local && local.group_size == 1 && local.start == 0) {
    refuse(given, {"local_hook"}, "with groups of one rank (--local_group) and no --outer_warmup");
  }
}

bool takes_local_steps(const Given& given) { return given.has("sync_every") || given.has("sync_seconds"); }

std::optional<OuterOptions> read_outer(const Given& given) {
  if (!takes_local_steps(given)) {
    return std::nullopt;
  }
  if (given.has("sync_seconds")) {
    refuse(given, {"sync_every", "fragments", "overlap_steps", "outer_mix"},
           "with --sync_seconds, because clocks decide when a round ends");
  }
  if (given.has("outer_quorum")) {
    refuse(given, {"fragments", "overlap_steps", "outer_mix", "levels", "link_gbit", "link_us"},
           "with --outer_quorum, whose messages go from group to group");
  }
  OuterOptions outer = given.arguments.outer;
  hooks::WireOptions wire = read_wire(given);
  wire.format = outer.wire().format;
  if (outer.quorum()) wire.node_size.reset();  // It only makes the groups.
  const bool rounds = codec::wire::rounds(*wire.format);
  wire.error_feedback = outer.wire().error_feedback && (rounds || given.has("outer_error_feedback"));
  return outer.wire(wire).warmup_steps(given.arguments.job.ddp.local().start);
}

DdpOptions read_ddp(const Given& given, const std::string& hook) {
  DdpOptions ddp = given.arguments.job.ddp;
  hooks::LocalOptions local = ddp.local();
  if (!local.group_size) {
    local.group_size = ddp.wire().node_size;  // Consecutive ranks that count as a node are also a group.
  }
  const bool is_local = hooks::hook_row(hook).averages_in_groups;
  return ddp.hook(hook)
      .wire(is_local ? hooks::WireOptions{} : read_wire(given))
      .local(is_local ? local : hooks::LocalOptions{});
}

}  // namespace narrowcast

#include "trainer/train/options/worker_options.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include <narrowcast/outer_options.h>
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"

namespace narrowcast::options {

using program::variable;
using program::variable_or_zero;

namespace {

// The names of the wire-format hooks, separated by ", ".
std::string wire_format_hooks() {
  std::vector<std::string> names;
  for (const hooks::HookRow& row : hooks::hook_rows()) {
    if (row.format) names.push_back(row.name);
  }
  return absl::StrJoin(names, ", ");
}

// The hooks that take options of that kind. docs/reference/hooks.md lists the hooks of each family.
std::string hooks_that_take(hooks::OptionKind kind) {
  return absl::StrReplaceAll(hooks::hook_names_that_take(kind),
                             {{wire_format_hooks(), "wire-format hooks"},
                              {hooks::hook_names_that_take(hooks::OptionKind::kPowerSgd), "PowerSGD hooks"}});
}

// "auto", a number, or 0 for no value. The plan has numbers as numbers.
program::Variable connections_variable(std::optional<int64_t>& count) {
  return {.type = "text",
          .text = count ? hooks::connections_text(count) : "0",
          .set =
              [&count](const std::string& text, std::string& /*reason*/) {
                TORCH_CHECK_VALUE(hooks::parse_connections(text, count),
                                  "--connections: must be auto or a number, but is '", text, "'");
                if (count == 0) count.reset();
                return true;
              },
          .value =
              [&count] {
                if (count == hooks::kAutoConnections) return nlohmann::json(hooks::connections_text(count));
                return count ? nlohmann::json(*count) : nlohmann::json();
              }};
}

// Null for an unknown name.
const hooks::NamedOption* find(const std::vector<hooks::NamedOption>& options, const std::string& name) {
  const auto found = std::ranges::find(options, name, &hooks::NamedOption::name);
  return found == options.end() ? nullptr : &*found;
}

}  // namespace

// The link determines the number of hops, and so which values are rounded.
Role role_of(hooks::OptionKind kind) {
  switch (kind) {
    case hooks::OptionKind::kLevels:
    case hooks::OptionKind::kConnections:
      return Role::kFree;
    case hooks::OptionKind::kLink:
      return Role::kCircumstance;
    default:
      return Role::kSetting;
  }
}

Option hook_option(Option option) {
  static const std::vector<hooks::NamedOption> of_gradients = hooks::named_options({});
  static const std::vector<hooks::NamedOption> of_parameters = OuterOptions().named();
  const hooks::NamedOption* const outer = find(of_parameters, option.flag);
  const hooks::NamedOption* const named = outer != nullptr ? outer : find(of_gradients, option.flag);
  TORCH_CHECK_VALUE(named != nullptr, "--", option.flag, ": is not an option of a hook");
  option.help = absl::StrCat("With ", hooks_that_take(named->kind), ": ", option.help);
  option.in_plan = InPlan::kComputed;
  if (option.role == Role::kFree) option.role = role_of(named->kind);
  option.verified = outer == nullptr || outer->kind != hooks::OptionKind::kLocal;  // No parameters are exchanged.
  return option;
}

std::vector<Option> place_options(WorkerPlace& place) {
  WorkerFlags& flags = place.flags;
  return {
      {.flag = "rank",
       .variable = variable(flags.rank),
       .help = "This process's rank, from 0. Default of this flag and the next five: from the launcher.",
       .usual = "0"},
      {.flag = "world_size",
       .variable = variable(flags.world_size),
       .help = "Number of ranks.",
       .usual = "1",
       .role = Role::kCircumstance},
      {.flag = "local_rank",
       .variable = variable(flags.local_rank),
       .help = "This process's number on its node, from 0.",
       .usual = "0"},
      {.flag = "local_world_size",
       .variable = variable(flags.local_world_size),
       .help = "Number of processes on this node.",
       .usual = "1"},
      {.flag = "master_addr",
       .variable = variable(flags.master_addr),
       .help = "Address of rank 0's machine, which has the job's store."},
      {.flag = "master_port", .variable = variable(flags.master_port), .help = "TCP port of the store.", .usual = "0"},
      {.flag = "interface",
       .variable = variable(place.interface),
       .help = "Network interface for connections to other processes, e.g. eth0. Default: GLOO_SOCKET_IFNAME, else "
               "loopback for one node, else the interface that reaches rank 0."}};
}

Option device_option(std::string& device) {
  return {.flag = "device",
          .variable = variable(device),
          .help =
              "cpu, cuda (the local rank's GPU), cuda:N (GPU N for every rank), or auto: GPUs if the node has one per "
              "rank, else cpu.",
          .in_plan = InPlan::kComputed,
          .role = Role::kCircumstance,
          .verified = true};
}

Option threads_option(int64_t& threads) {
  return {.flag = "threads",
          .variable = variable(threads),
          .help = "Threads per rank; 0: OMP_NUM_THREADS, else the node's cores divided by its ranks.",
          .unit = "in 0..4096",
          .role = Role::kCircumstance,
          .verified = true};
}

std::vector<Option> patience_options(ProcessGroupOptions& group) {
  return {{.flag = "timeout_seconds",
           .variable = variable(group.timeout),
           .help = "Time limit for joining the other ranks and for every collective.",
           .unit = "seconds",
           .verified = true},
          {.flag = "silence_seconds",
           .variable = variable(group.silence),
           .help = "Heartbeat timeout: the job ends if a rank sends no heartbeat for this time; 0: only "
                   "--timeout_seconds applies.",
           .unit = "seconds, 0 or at least 3",
           .verified = true}};
}

std::vector<Option> route_options(hooks::WireOptions& wire) {
  return {
      hook_option({.flag = "levels",
                   .variable = variable(wire.levels, hooks::parse_levels),
                   .help = "two sums within nodes first, which sends less; one does not; auto uses two if possible."}),
      hook_option({.flag = "node_size",
                   .variable = variable_or_zero(wire.node_size),
                   .help = "treat every N consecutive ranks as a node; 1: each rank is a node; 0: detect nodes.",
                   .unit = "ranks"}),
      hook_option({.flag = "link_gbit",
                   .variable = variable_or_zero(wire.link_gbit),
                   .help = "bandwidth of a node's NIC, which its ranks share; 0: measure it. Rates of narrowcast-bench "
                           "are shares of it.",
                   .unit = "Gbit/s"}),
      hook_option({.flag = "link_us",
                   .variable = variable_or_zero(wire.link_us),
                   .help = "latency of a small message to another node, in microseconds; 0: measure it.",
                   .unit = "us"}),
      hook_option({.flag = "connections",
                   .variable = connections_variable(wire.connections),
                   .help = "TCP connections per rank on other nodes: 1..64, auto, or 0 for the group's."})};
}

}  // namespace narrowcast::options

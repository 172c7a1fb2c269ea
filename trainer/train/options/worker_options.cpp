#include "trainer/train/options/worker_options.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include <narrowcast/outer_options.h>
#include "hooks/table/hook_table.h"

namespace narrowcast::options {

using program::variable;
using program::variable_or_zero;

namespace {

// Null for a name that is not among them.
const hooks::NamedOption* find(const std::vector<hooks::NamedOption>& options, const std::string& name) {
  const auto found = std::ranges::find(options, name, &hooks::NamedOption::name);
  return found == options.end() ? nullptr : &*found;
}

}  // namespace

// By the link ranks choose in how many hops they exchange, and so what is rounded.
Role role_of(hooks::OptionKind kind) {
  switch (kind) {
    case hooks::OptionKind::kLevels:
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
  TORCH_CHECK_VALUE(named != nullptr, "--", option.flag, ": is no option of a hook");
  option.help = absl::StrCat("With ", hooks::hook_names_that_take(named->kind), ": ", option.help);
  option.in_plan = InPlan::kComputed;
  option.role = role_of(named->kind);
  option.verified = outer == nullptr || outer->kind != hooks::OptionKind::kLocal;  // No parameters are exchanged.
  return option;
}

std::vector<Option> place_options(WorkerPlace& place) {
  WorkerFlags& flags = place.flags;
  return {
      {.flag = "rank",
       .variable = variable(flags.rank),
       .help = "This process's rank, from 0; from the launcher if not given, as the next five.",
       .usual = "0"},
      {.flag = "world_size",
       .variable = variable(flags.world_size),
       .help = "Number of ranks.",
       .usual = "1",
       .role = Role::kCircumstance},
      {.flag = "local_rank",
       .variable = variable(flags.local_rank),
       .help = "This process's number among those of its node.",
       .usual = "0"},
      {.flag = "local_world_size",
       .variable = variable(flags.local_world_size),
       .help = "Number of processes of its node.",
       .usual = "1"},
      {.flag = "master_addr",
       .variable = variable(flags.master_addr),
       .help = "Address of rank 0's machine, where the job's store is."},
      {.flag = "master_port", .variable = variable(flags.master_port), .help = "TCP port of the store.", .usual = "0"},
      {.flag = "interface",
       .variable = variable(place.interface),
       .help = "Network interface to reach other processes by, e.g. eth0. If not given: GLOO_SOCKET_IFNAME, else "
               "loopback for a job on one node, else the one that reaches rank 0."}};
}

Option device_option(std::string& device) {
  return {.flag = "device",
          .variable = variable(device),
          .help =
              "Where to compute: cpu, cuda (the GPU of the local rank), cuda:N (GPU N, on every rank), or auto: the "
              "GPUs of this node if there is one for each of its ranks, else the CPU.",
          .in_plan = InPlan::kComputed,
          .role = Role::kCircumstance,
          .verified = true};
}

Option threads_option(int64_t& threads) {
  return {.flag = "threads",
          .variable = variable(threads),
          .help = "Threads per rank; 0: OMP_NUM_THREADS, else the cores shared by the ranks of this node.",
          .unit = "in 0..4096",
          .role = Role::kCircumstance,
          .verified = true};
}

std::vector<Option> patience_options(ProcessGroupOptions& group) {
  return {{.flag = "timeout_seconds",
           .variable = variable(group.timeout),
           .help = "Limit for joining the other ranks and for every collective.",
           .unit = "seconds",
           .verified = true},
          {.flag = "silence_seconds",
           .variable = variable(group.silence),
           .help = "Time without a sign of its process after which a rank is lost and the job ends; 0: only "
                   "--timeout_seconds counts.",
           .unit = "seconds, 0 or at least 3",
           .verified = true}};
}

std::vector<Option> route_options(hooks::WireOptions& wire) {
  return {
      hook_option({.flag = "levels",
                   .variable = variable(wire.levels, hooks::parse_levels),
                   .help = "where ranks share a node: two lets them sum in its memory first, so that each byte crosses "
                           "the node's card once, one lets each rank exchange with every other, auto takes two where "
                           "it can."}),
      hook_option({.flag = "node_size",
                   .variable = variable_or_zero(wire.node_size),
                   .help = "take so many consecutive ranks for a node, instead of finding out which share one; with 1 "
                           "every rank is one. 0: find out.",
                   .unit = "ranks"}),
      hook_option({.flag = "link_gbit",
                   .variable = variable_or_zero(wire.link_gbit),
                   .help = "Gbit/s of a node's network card, which its ranks share. 0: measure it. Rates of "
                           "narrowcast-bench are shares of it, too.",
                   .unit = "Gbit/s"}),
      hook_option({.flag = "link_us",
                   .variable = variable_or_zero(wire.link_us),
                   .help = "microseconds until a small message has arrived at another node. 0: measure them.",
                   .unit = "us"})};
}

}  // namespace narrowcast::options

// The options of the exchange of gradients and of parameters.
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"
#include "trainer/train/options/option_rows.h"

namespace narrowcast::options {

using nlohmann::json;
using program::Variable;
using program::variable;

namespace {

constexpr const char* kAutoSize = "auto";

std::string name_of(OuterKind kind) { return std::string(to_string(kind)); }

// The format of the hook that takes others, too.
std::string default_format() { return std::string(to_string(hooks::hook_row(hooks::kAnyFormatHook).format.value())); }

// A number of MiB, or "auto", which is no value.
Variable bucket_size(std::optional<double>& megabytes) {
  return {.type = "text",
          .text = megabytes ? absl::StrCat(*megabytes) : kAutoSize,
          .set =
              [&megabytes](const std::string& text, std::string& /*reason*/) {
                double number = 0;
                const bool is_number = absl::SimpleAtod(text, &number);
                TORCH_CHECK_VALUE(is_number || text == kAutoSize,
                                  "--bucket_cap_mb: must be a number of MiB or auto, but is '", text, "'");
                megabytes = is_number ? std::optional(number) : std::nullopt;
                return true;
              },
          .value = [&megabytes] { return megabytes ? json(*megabytes) : json(); }};
}

// A number of ranks, or "node", which is no value, or "none".
Variable local_group(std::optional<int64_t>& size) {
  return {.type = "text",
          .text = hooks::local_group_text(size),
          .set =
              [&size](const std::string& text, std::string& /*reason*/) {
                TORCH_CHECK_VALUE(hooks::parse_local_group(text, size),
                                  "--local_group: must be node, none or a number of ranks, but is '", text, "'");
                return true;
              },
          .value = [&size] { return size ? json(*size) : json(); }};
}

std::vector<Option> wire_rows(Arguments& arguments) {
  hooks::WireOptions& wire = arguments.job.ddp.hook_options().wire;
  const std::vector<Option> of_formats = {
      hook_option(
          {.flag = "hook_format",
           .variable = variable(wire.format, parse_wire_format),
           .help = absl::StrCat("how gradients travel: ", wire_format_names(), "; see docs/reference/wire-format.md."),
           .usual = default_format()}),
      hook_option({.flag = "stochastic_rounding",
                   .variable = variable(arguments.stochastic_rounding),
                   .help = "round gradients up or down at random, by --seed."}),
      hook_option({.flag = "error_feedback",
                   .variable = variable(wire.error_feedback),
                   .help = "add in the next step what rounding left out."}),
      hook_option({.flag = "exempt_one_dimensional",
                   .variable = variable(wire.exempt_one_dimensional),
                   .help = "send gradients of biases and norms as float32."})};
  const std::vector<Option> of_others = {
      hook_option({.flag = "auto_bits",
                   .variable = variable(wire.auto_bits),
                   .help = "never take formats of fewer bits.",
                   .usual = absl::StrCat(hooks::kDefaultAutoBits),
                   .unit = "bits",
                   .range = {.least = hooks::kFewestAutoBits, .most = hooks::kDefaultAutoBits}}),
      hook_option({.flag = "channel_size",
                   .variable = variable(arguments.job.ddp.hook_options().channel_size),
                   .help = "how many elements share a scale.",
                   .usual = absl::StrCat(hooks::kDefaultChannelSize),
                   .unit = "elements",
                   .range = at_least(1)})};
  return joined({of_formats, route_options(wire), of_others});
}

std::vector<Option> bucket_rows(DdpOptions& ddp) {
  return {{.flag = "bucket_cap_mb",
           .variable = bucket_size(ddp.bucket_cap_mb()),
           .help = "Size of a gradient bucket, in MiB, or auto: chosen in the first steps, which measure the backward "
                   "pass and the exchange.",
           .unit = "MiB",
           .in_plan = InPlan::kComputed,
           .role = Role::kSetting,
           .verified = true,
           .resume_note = "must be the same; auto takes the checkpoint's"},
          {.flag = "find_unused_parameters",
           .variable = variable(ddp.find_unused_parameters()),
           .help = "Let parameters stay unused in some backward passes.",
           .verified = true},
          {.flag = "static_graph",
           .variable = variable(ddp.static_graph()),
           .help = "Promise that every step uses the same parameters in the same way.",
           .verified = true},
          {.flag = "gradient_as_bucket_view",
           .variable = variable(ddp.gradient_as_bucket_view()),
           .help = "Let gradients be views of the buckets, which saves their copy.",
           .verified = true}};
}

std::vector<Option> local_rows(hooks::LocalOptions& local) {
  return {hook_option({.flag = "outer_warmup",
                       .variable = variable(local.start),
                       .help = "steps at the beginning in which all ranks average their gradients.",
                       .range = at_least(0)}),
          hook_option({.flag = "local_group",
                       .variable = local_group(local.group_size),
                       .help = "which ranks average their gradients in each step: node (those of a node), none, or so "
                               "many consecutive ranks."}),
          hook_option({.flag = "local_hook",
                       .variable = variable(local.hook),
                       .help = "the hook by which they do, and all ranks in the steps of --outer_warmup."})};
}

std::vector<Option> outer_step_rows(OuterOptions& outer) {
  static const auto sgd = OuterOptions().optimizer(OuterKind::kSgd);
  static const auto nesterov = OuterOptions().optimizer(OuterKind::kNesterov);
  return {
      hook_option({.flag = "sync_every",
                   .variable = variable(outer.sync_every()),
                   .help = "steps from one exchange of a parameter between all ranks to its next. Without --hook it "
                           "chooses that hook.",
                   .usual = "0",
                   .range = at_least(1)}),
      hook_option({.flag = "outer_optimizer",
                   .variable = variable(outer.optimizer(), parse_outer_kind),
                   .help = absl::StrCat("what the mean of an exchange is for: ", name_of(OuterKind::kAverage),
                                        " (the ranks' mean is taken), ", name_of(OuterKind::kSgd), " or ",
                                        name_of(OuterKind::kNesterov), " (a step of that optimizer, as in DiLoCo).")}),
      hook_option({.flag = "outer_learning_rate",
                   .variable = variable(outer.learning_rate()),
                   .help = absl::StrCat("the rate of --outer_optimizer=nesterov, or sgd (",
                                        sgd.effective_learning_rate(), " if not given)."),
                   .usual = absl::StrCat(nesterov.effective_learning_rate()),
                   .range = positive()}),
      hook_option({.flag = "outer_momentum",
                   .variable = variable(outer.momentum()),
                   .help = absl::StrCat("the momentum of --outer_optimizer=nesterov, or sgd (",
                                        sgd.effective_momentum(), " if not given)."),
                   .usual = absl::StrCat(nesterov.effective_momentum()),
                   .range = share_below_one()})};
}

std::vector<Option> outer_exchange_rows(OuterOptions& outer) {
  return {hook_option({.flag = "fragments",
                       .variable = variable(outer.fragments()),
                       .help = "parts of the parameters that are exchanged one after the other; divides --sync_every.",
                       .range = at_least(1)}),
          hook_option({.flag = "overlap_steps",
                       .variable = variable(outer.overlap_steps()),
                       .help = "steps that go on while a fragment is exchanged; less than --sync_every / --fragments.",
                       .range = at_least(0)}),
          hook_option({.flag = "outer_mix",
                       .variable = variable(outer.mix()),
                       .help = "the share that a rank keeps of its own parameters after an exchange.",
                       .range = share()}),
          hook_option({.flag = "outer_format",
                       .variable = variable(outer.wire().format, parse_wire_format),
                       .help = "how parameters travel in an exchange; see docs/reference/wire-format.md."}),
          hook_option({.flag = "outer_error_feedback",
                       .variable = variable(outer.wire().error_feedback),
                       .help = "add in the next exchange what the rounding of --outer_format left out."})};
}

std::vector<Option> power_sgd_rows(hooks::PowerSgdOptions& power_sgd) {
  return {hook_option({.flag = "power_sgd_rank",
                       .variable = variable(power_sgd.rank),
                       .help = "columns of the factors; unless given what the name says.",
                       .usual = "1",
                       .range = at_least(1)}),
          hook_option({.flag = "power_sgd_start",
                       .variable = variable(power_sgd.start),
                       .help = "so many steps are averaged whole first, as by allreduce.",
                       .range = at_least(0)}),
          hook_option({.flag = "power_sgd_min_rate",
                       .variable = variable(power_sgd.min_rate),
                       .help = "by more than what factor a matrix must shrink to be compressed.",
                       .range = positive()}),
          hook_option({.flag = "power_sgd_error_feedback",
                       .variable = variable(power_sgd.error_feedback),
                       .help = "add in the next step what was lost."}),
          hook_option({.flag = "power_sgd_warm_start",
                       .variable = variable(power_sgd.warm_start),
                       .help = "begin with the factor of the step before, instead of a random one."}),
          hook_option({.flag = "power_sgd_epsilon",
                       .variable = variable(power_sgd.epsilon),
                       .help = "is added to the norms by which columns are divided.",
                       .range = at_least(0)}),
          hook_option({.flag = "power_sgd_seed",
                       .variable = variable(power_sgd.seed),
                       .help = "of the random factors.",
                       .unit = "in 0..2^32 - 1"}),
          hook_option({.flag = "power_sgd_batch",
                       .variable = variable(power_sgd.batch),
                       .help = "multiply matrices of one shape together."}),
          hook_option({.flag = "power_sgd_alternate",
                       .variable = variable(power_sgd.alternate),
                       .help = "send one of the two factors in each step, in turn."}),
          hook_option({.flag = "power_sgd_memory",
                       .variable = variable(power_sgd.memory, hooks::parse_power_sgd_memory),
                       .help = "what is lost is that of a rank's own factors (local) or of the mean (averaged), which "
                               "is PyTorch's, with its bits."}),
          hook_option({.flag = "power_sgd_wire",
                       .variable = variable(power_sgd.wire, parse_wire_format),
                       .help = "the wire format of the factors and of what is not compressed."})};
}

}  // namespace

std::vector<Option> exchange_rows(Arguments& arguments) {
  DdpOptions& ddp = arguments.job.ddp;
  hooks::HookOptions& hook_options = ddp.hook_options();
  const std::vector<Option> hook = {
      {.flag = "hook",
       .variable = variable(ddp.hook()),
       .help = absl::StrCat(
           "How gradients travel between ranks: ", absl::StrJoin(hooks::comm_hook_names(), ", "),
           "; see docs/reference/hooks.md. auto measures, and takes the fastest for each bucket; for a process "
           "alone it is none if not given."),
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&arguments] { return arguments.verify_gradients ? json() : json(arguments.job.ddp.hook()); },
       .verified = true}};
  const std::vector<Option> backend = {
      {.flag = "backend",
       .variable = variable(arguments.job.group.backend),
       .help = "gloo (tensors on the CPU), nccl (on GPUs), or auto: what --device needs.",
       .verified = true}};
  return joined({hook, wire_rows(arguments), bucket_rows(ddp), local_rows(hook_options.local),
                 outer_step_rows(arguments.outer), outer_exchange_rows(arguments.outer),
                 power_sgd_rows(hook_options.power_sgd), backend, patience_options(arguments.job.group)});
}

}  // namespace narrowcast::options

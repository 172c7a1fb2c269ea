#include "trainer/train/options/exchange_rows.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"

namespace narrowcast::options {

using nlohmann::json;
using program::Variable;
using program::variable;

namespace {

constexpr const char* kAutoSize = "auto";

std::string name_of(OuterKind kind) { return std::string(to_string(kind)); }

// The default format of the hook that accepts any format.
std::string default_format() { return std::string(to_string(hooks::hook_row(hooks::kAnyFormatHook).format.value())); }

// A number of MiB, or "auto", which sets no value.
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

// A number of ranks, "none", or "node", which sets no value.
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
      hook_option({.flag = "hook_format",
                   .variable = variable(wire.format, parse_wire_format),
                   .help = "wire format, such as int8_b32 or var5; an unknown name lists all.",
                   .usual = default_format()}),
      hook_option({.flag = "stochastic_rounding",
                   .variable = variable(arguments.stochastic_rounding),
                   .help = "round gradients up or down at random, with --seed."}),
      hook_option({.flag = "error_feedback",
                   .variable = variable(wire.error_feedback),
                   .help = "add the rounding error of a step to the next step."}),
      hook_option({.flag = "exempt_one_dimensional",
                   .variable = variable(wire.exempt_one_dimensional),
                   .help = "send gradients of biases and norms as float32."})};
  const std::vector<Option> of_others = {
      hook_option({.flag = "auto_bits",
                   .variable = variable(wire.auto_bits),
                   .help = "never use a format with fewer bits.",
                   .usual = absl::StrCat(hooks::kDefaultAutoBits),
                   .unit = "bits",
                   .range = {.least = hooks::kFewestAutoBits, .most = hooks::kDefaultAutoBits}}),
      hook_option({.flag = "channel_size",
                   .variable = variable(arguments.job.ddp.hook_options().channel_size),
                   .help = "number of elements that share a scale.",
                   .usual = absl::StrCat(hooks::kDefaultChannelSize),
                   .unit = "elements",
                   .range = at_least(1)})};
  return joined({of_formats, route_options(wire), of_others});
}

std::vector<Option> bucket_rows(DdpOptions& ddp) {
  return {{.flag = "bucket_cap_mb",
           .variable = bucket_size(ddp.bucket_cap_mb()),
           .help = "Size of a gradient bucket in MiB, or auto: chosen in the first steps, which measure backward pass "
                   "and all-reduce.",
           .unit = "MiB",
           .in_plan = InPlan::kComputed,
           .role = Role::kSetting,
           .verified = true,
           .resume_note = "must be the same; auto takes the checkpoint's"},
          {.flag = "find_unused_parameters",
           .variable = variable(ddp.find_unused_parameters()),
           .help = "Allow parameters that some backward passes do not use.",
           .verified = true},
          {.flag = "static_graph",
           .variable = variable(ddp.static_graph()),
           .help = "Promise that every step uses the same parameters in the same way.",
           .verified = true},
          {.flag = "gradient_as_bucket_view",
           .variable = variable(ddp.gradient_as_bucket_view()),
           .help = "Let gradients be views of the buckets, which saves a copy.",
           .verified = true}};
}

std::vector<Option> local_rows(hooks::LocalOptions& local) {
  return {
      hook_option({.flag = "outer_warmup",
                   .variable = variable(local.start),
                   .help = "first steps, in which all ranks average their gradients.",
                   .range = at_least(0)}),
      hook_option({.flag = "local_group",
                   .variable = local_group(local.group_size),
                   .help = "ranks that average their gradients in each step: node (the ranks of a node), none, or a "
                           "number of consecutive ranks."}),
      hook_option({.flag = "local_hook",
                   .variable = variable(local.hook),
                   .help = "hook that averages in --local_group, and over all ranks in the steps of --outer_warmup."})};
}

std::vector<Option> outer_step_rows(OuterOptions& outer) {
  static const auto sgd = OuterOptions().optimizer(OuterKind::kSgd);
  static const auto nesterov = OuterOptions().optimizer(OuterKind::kNesterov);
  return {
      hook_option({.flag = "sync_every",
                   .variable = variable(outer.sync_every()),
                   .help = "steps between averages of a parameter over all ranks. Without --hook it selects this hook.",
                   .usual = "0",
                   .range = at_least(1)}),
      hook_option({.flag = "sync_seconds",
                   .variable = variable(outer.sync_seconds()),
                   .help = "instead of --sync_every: seconds between averages, in which each group takes as many steps "
                           "as it can.",
                   .usual = "0",
                   .unit = "seconds",
                   .range = positive()}),
      hook_option({.flag = "outer_quorum",
                   .variable = variable(outer.quorum()),
                   .help = "take an outer step once so many groups have sent; late ones are in a later step. Default: "
                           "all groups.",
                   .usual = "0",
                   .range = at_least(1),
                   .role = Role::kCircumstance}),  // A site may be gone for good.
      hook_option({.flag = "outer_grace_seconds",
                   .variable = variable(outer.grace_seconds()),
                   .help = "with --outer_quorum: seconds to wait for the other groups of the last outer step.",
                   .usual = "0",
                   .unit = "seconds",
                   .range = {.least = 0},
                   .role = Role::kCircumstance}),
      hook_option({.flag = "outer_optimizer",
                   .variable = variable(outer.optimizer(), parse_outer_kind),
                   .help = absl::StrCat("use of the parameters' mean: ", name_of(OuterKind::kAverage), " (take it), ",
                                        name_of(OuterKind::kSgd), " or ", name_of(OuterKind::kNesterov),
                                        " (take a step of that optimizer, as in DiLoCo).")}),
      hook_option({.flag = "outer_learning_rate",
                   .variable = variable(outer.learning_rate()),
                   .help = absl::StrCat("learning rate of --outer_optimizer=nesterov or sgd (default of sgd: ",
                                        sgd.effective_learning_rate(), ")."),
                   .usual = absl::StrCat(nesterov.effective_learning_rate()),
                   .range = positive()}),
      hook_option({.flag = "outer_momentum",
                   .variable = variable(outer.momentum()),
                   .help = absl::StrCat("momentum of --outer_optimizer=nesterov or sgd (default of sgd: ",
                                        sgd.effective_momentum(), ")."),
                   .usual = absl::StrCat(nesterov.effective_momentum()),
                   .range = share_below_one()})};
}

std::vector<Option> outer_exchange_rows(OuterOptions& outer) {
  static const auto sparse = OuterOptions().wire({.format = WireFormat::kTop2P15});
  return {
      hook_option({.flag = "fragments",
                   .variable = variable(outer.fragments()),
                   .help = "parts of the parameters that are averaged one after the other; must divide --sync_every.",
                   .range = at_least(1)}),
      hook_option(
          {.flag = "overlap_steps",
           .variable = variable(outer.overlap_steps()),
           .help = "steps that are computed while a fragment is averaged; less than --sync_every / --fragments.",
           .range = at_least(0)}),
      hook_option({.flag = "outer_mix",
                   .variable = variable(outer.mix()),
                   .help = "share of a rank's previous parameters that remains after an average.",
                   .range = share()}),
      hook_option({.flag = "outer_format",
                   .variable = variable(outer.wire().format, parse_wire_format),
                   .help = "wire format of the parameters; see docs/reference/wire-format.md."}),
      hook_option({.flag = "outer_error_feedback",
                   .variable = variable(outer.wire().error_feedback),
                   .help = "add the rounding error of --outer_format to the next average."}),
      hook_option({.flag = "outer_error_decay",
                   .variable = variable(outer.error_decay()),
                   .help = absl::StrCat("factor of that error before each average (default of top2 formats: ",
                                        sparse.effective_error_decay(), ")."),
                   .usual = absl::StrCat(OuterOptions().effective_error_decay()),
                   .range = {.least = 0, .most = 1, .without_least = true}})};
}

std::vector<Option> power_sgd_rows(hooks::PowerSgdOptions& power_sgd) {
  return {hook_option({.flag = "power_sgd_rank",
                       .variable = variable(power_sgd.rank),
                       .help = "columns of the factors. Default: the rank in the hook's name, else 1.",
                       .usual = "1",
                       .range = at_least(1)}),
          hook_option({.flag = "power_sgd_start",
                       .variable = variable(power_sgd.start),
                       .help = "first steps, in which gradients are averaged uncompressed, as by allreduce.",
                       .range = at_least(0)}),
          hook_option({.flag = "power_sgd_min_rate",
                       .variable = variable(power_sgd.min_rate),
                       .help = "compress a matrix only if it shrinks by more than this factor.",
                       .range = positive()}),
          hook_option({.flag = "power_sgd_error_feedback",
                       .variable = variable(power_sgd.error_feedback),
                       .help = "add the compression error of a step to the next step."}),
          hook_option({.flag = "power_sgd_warm_start",
                       .variable = variable(power_sgd.warm_start),
                       .help = "start with the factor of the previous step, instead of a random one."}),
          hook_option({.flag = "power_sgd_epsilon",
                       .variable = variable(power_sgd.epsilon),
                       .help = "value added to the norms by which columns are divided.",
                       .range = at_least(0)}),
          hook_option({.flag = "power_sgd_seed",
                       .variable = variable(power_sgd.seed),
                       .help = "seed of the random factors.",
                       .unit = "in 0..2^32 - 1"}),
          hook_option({.flag = "power_sgd_batch",
                       .variable = variable(power_sgd.batch),
                       .help = "multiply matrices of equal shape together."}),
          hook_option({.flag = "power_sgd_alternate",
                       .variable = variable(power_sgd.alternate),
                       .help = "send one of the two factors in each step, alternately."}),
          hook_option({.flag = "power_sgd_memory",
                       .variable = variable(power_sgd.memory, hooks::parse_power_sgd_memory),
                       .help = "error for the next step: gradient minus own product (local), or minus mean (averaged; "
                               "as in PyTorch, bit for bit)."}),
          hook_option({.flag = "power_sgd_wire",
                       .variable = variable(power_sgd.wire, parse_wire_format),
                       .help = "wire format of the factors and of uncompressed gradients."})};
}

}  // namespace

std::vector<Option> exchange_rows(Arguments& arguments) {
  DdpOptions& ddp = arguments.job.ddp;
  hooks::HookOptions& hook_options = ddp.hook_options();
  const std::vector<Option> hook = {
      {.flag = "hook",
       .variable = variable(ddp.hook()),
       .help = "Hook that averages gradients; docs/reference/hooks.md lists them. auto uses the fastest one for each "
               "bucket; a single process has none by default.",
       .in_plan = InPlan::kValue,
       .role = Role::kSetting,
       .planned = [&arguments] { return arguments.verify_gradients ? json() : json(arguments.job.ddp.hook()); },
       .verified = true}};
  const std::vector<Option> backend = {
      {.flag = "backend",
       .variable = variable(arguments.job.group.backend),
       .help = "gloo (tensors on the CPU), nccl (on GPUs), or auto: the one that --device needs.",
       .verified = true}};
  return joined({hook, wire_rows(arguments), bucket_rows(ddp), local_rows(hook_options.local),
                 outer_step_rows(arguments.outer), outer_exchange_rows(arguments.outer),
                 power_sgd_rows(hook_options.power_sgd), backend, patience_options(arguments.job.group)});
}

}  // namespace narrowcast::options

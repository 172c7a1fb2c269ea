#include "trainer/train/flags/train_flags.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <span>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/hook_options.h"
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"
#include "trainer/train/flags/worker_flags.h"

ABSL_DECLARE_FLAG(int64_t, seed);  // Also of random rounding.

namespace {

namespace hooks = narrowcast::hooks;
using hooks::OptionKind;
using narrowcast::OuterKind;
using narrowcast::with_hooks_of;

const narrowcast::DdpOptions kDdp;
const narrowcast::OuterOptions kOuter;
const auto kOuterSgd = narrowcast::OuterOptions().optimizer(OuterKind::kSgd);
const auto kDiLoCo = narrowcast::OuterOptions().optimizer(OuterKind::kNesterov);

// The format of the hook that takes others, too.
std::string default_format() { return std::string(to_string(hooks::hook_row(hooks::kAnyFormatHook).format.value())); }

std::string name_of(OuterKind kind) { return std::string(to_string(kind)); }

std::string with_local_hooks(const std::string& text) {
  return narrowcast::with_hooks_that_take(OptionKind::kLocal, text);
}

}  // namespace

ABSL_FLAG(
    std::string, hook, "auto",
    absl::StrCat(
        "How gradients travel between ranks: ", absl::StrJoin(hooks::comm_hook_names(), ", "),
        "; see docs/reference/hooks.md. auto measures, and takes the fastest for each bucket; for a process alone "
        "it is none if not given."));
ABSL_FLAG(std::string, hook_format, default_format(),
          with_hooks_of("hook_format", absl::StrCat("how gradients travel: ", narrowcast::wire_format_names(),
                                                    "; see docs/reference/wire-format.md.")));
ABSL_FLAG(int64_t, channel_size, hooks::kDefaultChannelSize,
          with_hooks_of("channel_size", "how many elements share a scale; at least 1."));
ABSL_FLAG(bool, stochastic_rounding, false,
          with_hooks_of("stochastic_rounding", "round gradients up or down at random, by --seed."));
ABSL_FLAG(bool, error_feedback, kDdp.wire().error_feedback,
          with_hooks_of("error_feedback", "add in the next step what rounding left out."));
ABSL_FLAG(bool, exempt_one_dimensional, kDdp.wire().exempt_one_dimensional,
          with_hooks_of("exempt_one_dimensional", "send gradients of biases and norms as float32."));
ABSL_FLAG(int64_t, auto_bits, hooks::kDefaultAutoBits,
          with_hooks_of("auto_bits", absl::StrCat("never take formats of fewer bits; ", hooks::kFewestAutoBits, " to ",
                                                  hooks::kDefaultAutoBits, ".")));
ABSL_FLAG(std::string, local_group, hooks::local_group_text(kDdp.local().group_size),
          with_local_hooks("which ranks average their gradients in each step: node (those of a node), none, or so many "
                           "consecutive ranks."));
ABSL_FLAG(std::string, local_hook, kDdp.local().hook,
          with_local_hooks("the hook by which they do, and all ranks in the steps of --outer_warmup."));
ABSL_FLAG(int64_t, sync_every, 0,
          with_local_hooks("steps from one exchange of a parameter between all ranks to its next. Without --hook it "
                           "chooses that hook."));
ABSL_FLAG(std::string, outer_optimizer, name_of(kOuter.optimizer()),
          with_local_hooks(absl::StrCat("what the mean of an exchange is for: ", name_of(OuterKind::kAverage),
                                        " (the ranks' mean is taken), ", name_of(OuterKind::kSgd), " or ",
                                        name_of(OuterKind::kNesterov), " (a step of that optimizer, as in DiLoCo).")));
ABSL_FLAG(double, outer_learning_rate, kDiLoCo.effective_learning_rate(),
          with_local_hooks(absl::StrCat("the rate, above 0, of --outer_optimizer=nesterov, or sgd (",
                                        kOuterSgd.effective_learning_rate(), " if not given).")));
ABSL_FLAG(double, outer_momentum, kDiLoCo.effective_momentum(),
          with_local_hooks(absl::StrCat("the momentum, below 1, of --outer_optimizer=nesterov, or sgd (",
                                        kOuterSgd.effective_momentum(), " if not given).")));
ABSL_FLAG(int64_t, fragments, kOuter.fragments(),
          with_local_hooks("parts of the parameters that are exchanged one after the other; divides --sync_every."));
ABSL_FLAG(int64_t, overlap_steps, kOuter.overlap_steps(),
          with_local_hooks("steps that go on while a fragment is exchanged; less than --sync_every / --fragments."));
ABSL_FLAG(double, outer_mix, kOuter.mix(),
          with_local_hooks("the share, 0 to 1, that a rank keeps of its own parameters after an exchange."));
ABSL_FLAG(std::string, outer_format, std::string(to_string(kOuter.wire().format.value())),
          with_local_hooks("how parameters travel in an exchange; see docs/reference/wire-format.md."));
ABSL_FLAG(bool, outer_error_feedback, true,
          with_local_hooks("add in the next exchange what the rounding of --outer_format left out."));
ABSL_FLAG(int64_t, outer_warmup, kOuter.warmup_steps(),
          with_local_hooks("steps at the beginning in which all ranks average their gradients."));
ABSL_FLAG(int64_t, power_sgd_rank, 1,
          with_hooks_of("power_sgd_rank", "columns of the factors; at least 1, and unless given what the name says."));
ABSL_FLAG(int64_t, power_sgd_start, kDdp.power_sgd().start,
          with_hooks_of("power_sgd_start", "so many steps are averaged whole first, as by allreduce."));
ABSL_FLAG(double, power_sgd_min_rate, kDdp.power_sgd().min_rate,
          with_hooks_of("power_sgd_min_rate",
                        "by more than what factor a matrix must shrink to be compressed; positive."));
ABSL_FLAG(bool, power_sgd_error_feedback, kDdp.power_sgd().error_feedback,
          with_hooks_of("power_sgd_error_feedback", "add in the next step what was lost."));
ABSL_FLAG(bool, power_sgd_warm_start, kDdp.power_sgd().warm_start,
          with_hooks_of("power_sgd_warm_start", "begin with the factor of the step before, instead of a random one."));
ABSL_FLAG(double, power_sgd_epsilon, kDdp.power_sgd().epsilon,
          with_hooks_of("power_sgd_epsilon", "is added to the norms by which columns are divided."));
ABSL_FLAG(int64_t, power_sgd_seed, kDdp.power_sgd().seed,
          with_hooks_of("power_sgd_seed", "of the random factors; 0 to 2^32 - 1."));
ABSL_FLAG(bool, power_sgd_batch, kDdp.power_sgd().batch,
          with_hooks_of("power_sgd_batch", "multiply matrices of one shape together."));
ABSL_FLAG(bool, power_sgd_alternate, kDdp.power_sgd().alternate,
          with_hooks_of("power_sgd_alternate", "send one of the two factors in each step, in turn."));
ABSL_FLAG(std::string, power_sgd_memory, std::string(to_string(kDdp.power_sgd().memory)),
          with_hooks_of("power_sgd_memory",
                        "what is lost is that of a rank's own factors (local) or of the mean (averaged), which is "
                        "PyTorch's, with its bits."));
ABSL_FLAG(std::string, power_sgd_wire, std::string(to_string(kDdp.power_sgd().wire)),
          with_hooks_of("power_sgd_wire", "the wire format of the factors and of what is not compressed."));
ABSL_FLAG(std::string, bucket_cap_mb, "auto",
          "Size of a gradient bucket, in MiB, or auto: chosen in the first steps, which measure the backward pass and "
          "the exchange.");
ABSL_FLAG(bool, find_unused_parameters, kDdp.find_unused_parameters(),
          "Let parameters stay unused in some backward passes.");
ABSL_FLAG(bool, static_graph, kDdp.static_graph(), "Promise that every step uses the same parameters in the same way.");
ABSL_FLAG(bool, gradient_as_bucket_view, kDdp.gradient_as_bucket_view(),
          "Let gradients be views of the buckets, which saves their copy.");

namespace narrowcast {
namespace {

hooks::WireOptions read_wire(const program::CommandLine& line) {
  hooks::WireOptions options = read_route();
  if (line.given("hook_format")) {
    options.format = parse_wire_format(absl::GetFlag(FLAGS_hook_format));
  }
  if (absl::GetFlag(FLAGS_stochastic_rounding)) {
    options.stochastic_rounding_seed = absl::GetFlag(FLAGS_seed);
  }
  options.error_feedback = absl::GetFlag(FLAGS_error_feedback);
  options.exempt_one_dimensional = absl::GetFlag(FLAGS_exempt_one_dimensional);
  if (line.given("auto_bits")) {
    options.auto_bits = absl::GetFlag(FLAGS_auto_bits);
  }
  return options;
}

// Nothing for the ranks of a node.
std::optional<int64_t> read_local_group() {
  const std::string text = absl::GetFlag(FLAGS_local_group);
  std::optional<int64_t> size;
  TORCH_CHECK_VALUE(hooks::parse_local_group(text, size),
                    "--local_group: must be node, none or a number of ranks, but is '", text, "'");
  return size;
}

hooks::PowerSgdOptions read_power_sgd(const program::CommandLine& line) {
  hooks::PowerSgdOptions options;
  if (line.given("power_sgd_rank")) {
    options.rank = absl::GetFlag(FLAGS_power_sgd_rank);
  }
  options.start = absl::GetFlag(FLAGS_power_sgd_start);
  options.min_rate = absl::GetFlag(FLAGS_power_sgd_min_rate);
  options.error_feedback = absl::GetFlag(FLAGS_power_sgd_error_feedback);
  options.warm_start = absl::GetFlag(FLAGS_power_sgd_warm_start);
  options.epsilon = absl::GetFlag(FLAGS_power_sgd_epsilon);
  options.seed = absl::GetFlag(FLAGS_power_sgd_seed);
  options.batch = absl::GetFlag(FLAGS_power_sgd_batch);
  options.alternate = absl::GetFlag(FLAGS_power_sgd_alternate);
  options.memory = hooks::parse_power_sgd_memory(absl::GetFlag(FLAGS_power_sgd_memory));
  options.wire = parse_wire_format(absl::GetFlag(FLAGS_power_sgd_wire));
  return options;
}

// Nothing for "auto".
std::optional<double> read_bucket_cap() {
  const std::string text = absl::GetFlag(FLAGS_bucket_cap_mb);
  if (text == "auto") {
    return std::nullopt;
  }
  double megabytes = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtod(text, &megabytes), "--bucket_cap_mb: must be a number of MiB or auto, but is '",
                    text, "'");
  return megabytes;
}

// Whether the flag of an option of gradients has a meaning for exchanges of parameters, too. Others have flags of their
// own there: --outer_format, --outer_error_feedback.
bool outer_takes(const hooks::NamedOption& option) {
  const std::vector<hooks::NamedOption> taken = kOuter.named();
  return std::ranges::find(taken, option.name, &hooks::NamedOption::name) != taken.end();
}

// The flags of hooks' options, which have their names, of such kinds.
std::vector<std::string> flags_of(std::span<const OptionKind> kinds) {
  std::vector<std::string> names;
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (std::ranges::find(kinds, option.kind) != kinds.end()) names.push_back(option.name);
  }
  return names;
}

// What averages between groups, or approximates, has flags of its own.
constexpr OptionKind kOfGroups[] = {OptionKind::kLocal};
constexpr OptionKind kOfPowerSgd[] = {OptionKind::kPowerSgd, OptionKind::kPowerSgdOfMatrices};

}  // namespace

const std::vector<std::string>& local_flags() {
  static const std::vector<std::string> flags = [] {
    std::vector<std::string> all = flags_of(kOfGroups);
    for (const hooks::NamedOption& option : kOuter.named()) {
      const bool is_new = std::ranges::find(all, option.name) == all.end();
      if (option.kind == OptionKind::kLocal && is_new) all.push_back(option.name);
    }
    return all;
  }();
  return flags;
}

const std::vector<std::string>& power_sgd_flags() {
  static const std::vector<std::string> flags = flags_of(kOfPowerSgd);
  return flags;
}

const std::vector<std::string>& hook_option_flags() {
  static const std::vector<std::string> flags = [] {
    std::vector<std::string> all;
    for (const hooks::NamedOption& option : hooks::named_options({})) {
      const auto is_in = [&](const auto& kinds) { return std::ranges::count(kinds, option.kind) > 0; };
      if (!is_in(kOfGroups) && !is_in(kOfPowerSgd)) all.push_back(option.name);
    }
    return all;
  }();
  return flags;
}

const std::vector<std::string>& exchange_flags() {
  static const std::vector<std::string> flags = [] {
    std::vector<std::string> all = {"hook", "bucket_cap_mb", "find_unused_parameters", "static_graph",
                                    "gradient_as_bucket_view"};
    all.insert(all.begin() + 1, hook_option_flags().begin(), hook_option_flags().end());
    all.insert(all.end(), local_flags().begin(), local_flags().end());
    all.insert(all.end(), power_sgd_flags().begin(), power_sgd_flags().end());
    return all;
  }();
  return flags;
}

void refuse_other_hooks_options(const program::CommandLine& line, const std::string& hook) {
  const hooks::HookRow& row = hooks::hook_row(hook);
  const bool is_local = row.averages_in_groups;
  const std::string with_hook = "with the hook '" + hook + "'";
  if (!is_local) {
    refuse(line, local_flags(), with_hook + "; it is for " + hooks::hook_names_that_take(OptionKind::kLocal));
  }
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (!row.takes(option.kind) && !(is_local && outer_takes(option))) {
      refuse(line, {option.name}, with_hook + (is_local ? "; --outer_format says how parameters travel" : ""));
    }
  }
  if (is_local && read_local_group() == 1 && absl::GetFlag(FLAGS_outer_warmup) == 0) {
    refuse(line, {"local_hook"},
           absl::StrCat("with --local_group=", absl::GetFlag(FLAGS_local_group), " and no --outer_warmup"));
  }
}

std::optional<OuterOptions> read_outer(const program::CommandLine& line, const DdpOptions& ddp) {
  if (!line.given("sync_every")) {
    return std::nullopt;
  }
  hooks::WireOptions wire = read_wire(line);
  wire.format = parse_wire_format(absl::GetFlag(FLAGS_outer_format));
  const bool rounds = codec::wire::rounds(*wire.format);
  wire.error_feedback = absl::GetFlag(FLAGS_outer_error_feedback) && (rounds || line.given("outer_error_feedback"));
  const auto if_given = [&](const char* flag, double value) {
    return line.given(flag) ? std::optional(value) : std::nullopt;
  };
  return OuterOptions()
      .sync_every(absl::GetFlag(FLAGS_sync_every))
      .optimizer(parse_outer_kind(absl::GetFlag(FLAGS_outer_optimizer)))
      .learning_rate(if_given("outer_learning_rate", absl::GetFlag(FLAGS_outer_learning_rate)))
      .momentum(if_given("outer_momentum", absl::GetFlag(FLAGS_outer_momentum)))
      .fragments(absl::GetFlag(FLAGS_fragments))
      .overlap_steps(absl::GetFlag(FLAGS_overlap_steps))
      .mix(absl::GetFlag(FLAGS_outer_mix))
      .wire(wire)
      .warmup_steps(ddp.local().start);
}

DdpOptions read_ddp(const program::CommandLine& line, const std::string& hook) {
  const bool is_local = hooks::hook_row(hook).averages_in_groups;
  // Consecutive ranks that are taken for a node are a group, too.
  const std::optional<int64_t> group = read_local_group();
  const hooks::LocalOptions local = {.start = absl::GetFlag(FLAGS_outer_warmup),
                                     .group_size = group ? group : read_route().node_size,
                                     .hook = absl::GetFlag(FLAGS_local_hook)};
  return DdpOptions()
      .hook(hook)
      .wire(is_local ? hooks::WireOptions{} : read_wire(line))
      .local(is_local ? local : hooks::LocalOptions{})
      .channel_size(line.given("channel_size") ? std::optional(absl::GetFlag(FLAGS_channel_size)) : std::nullopt)
      .power_sgd(read_power_sgd(line))
      .bucket_cap_mb(read_bucket_cap())
      .find_unused_parameters(absl::GetFlag(FLAGS_find_unused_parameters))
      .static_graph(absl::GetFlag(FLAGS_static_graph))
      .gradient_as_bucket_view(absl::GetFlag(FLAGS_gradient_as_bucket_view));
}

}  // namespace narrowcast

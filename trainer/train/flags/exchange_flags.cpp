#include "trainer/train/flags/train_flags.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/hook_table.h"

ABSL_DECLARE_FLAG(int64_t, seed);  // Also of random rounding.

namespace {

namespace hooks = narrowcast::hooks;

const narrowcast::DdpOptions kDdp;

// The format of the hook that takes others, too.
std::string default_format() {
  const auto row = std::ranges::find(hooks::hook_rows(), true, &hooks::HookRow::takes_format);
  return std::string(to_string(row->format.value()));
}

std::string with_wire_hooks(const char* text) {
  return absl::StrCat("With ", hooks::hook_names_with(&hooks::HookRow::takes_format), ", its short names and ",
                      hooks::hook_names_with(&hooks::HookRow::chooses), ": ", text);
}

}  // namespace

ABSL_FLAG(std::string, hook, "auto",
          absl::StrCat("How gradients travel between ranks: ", absl::StrJoin(hooks::comm_hook_names(), ", "),
                       "; see docs/hooks.md. auto measures, and takes the fastest for each bucket; for a process alone "
                       "it is none if not given."));
ABSL_FLAG(std::string, hook_format, default_format(),
          absl::StrCat("With --hook=", hooks::hook_names_with(&hooks::HookRow::takes_format),
                       ": how gradients travel: ", narrowcast::wire_format_names(), "; see docs/wire_format.md."));
ABSL_FLAG(int64_t, channel_size, hooks::kDefaultChannelSize,
          absl::StrCat("With --hook=", hooks::hook_names_with(&hooks::HookRow::takes_channel_size),
                       ": how many elements share a scale; at least 1."));
ABSL_FLAG(bool, stochastic_rounding, false, with_wire_hooks("round gradients up or down at random, by --seed."));
ABSL_FLAG(bool, error_feedback, kDdp.wire().error_feedback,
          with_wire_hooks("add in the next step what rounding left out."));
ABSL_FLAG(bool, exempt_one_dimensional, kDdp.wire().exempt_one_dimensional,
          with_wire_hooks("send gradients of biases and norms as float32."));
ABSL_FLAG(
    std::string, levels, std::string(to_string(kDdp.wire().levels)),
    with_wire_hooks("where ranks share a node: two lets them sum in its memory first, so that each byte crosses the "
                    "node's card once, one lets each rank exchange with every other, auto takes two where it can."));
ABSL_FLAG(int64_t, node_size, 0,
          with_wire_hooks("take so many consecutive ranks for a node, instead of finding out which share one; with 1 "
                          "every rank is one. 0: find out."));
ABSL_FLAG(double, link_gbit, 0,
          with_wire_hooks("Gbit/s of a node's network card, which its ranks share. 0: measure it, before training."));
ABSL_FLAG(double, link_us, 0,
          with_wire_hooks("microseconds until a small message has arrived at another node. 0: measure them."));
ABSL_FLAG(int64_t, auto_bits, 8,
          absl::StrCat("With --hook=", hooks::hook_names_with(&hooks::HookRow::chooses),
                       ": never take formats of fewer bits; 4 to 8."));
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
  hooks::WireOptions options;
  if (line.given("hook_format")) {
    options.format = parse_wire_format(absl::GetFlag(FLAGS_hook_format));
  }
  if (absl::GetFlag(FLAGS_stochastic_rounding)) {
    options.stochastic_rounding_seed = absl::GetFlag(FLAGS_seed);
  }
  options.error_feedback = absl::GetFlag(FLAGS_error_feedback);
  options.exempt_one_dimensional = absl::GetFlag(FLAGS_exempt_one_dimensional);
  options.levels = hooks::parse_levels(absl::GetFlag(FLAGS_levels));
  if (const int64_t node_size = absl::GetFlag(FLAGS_node_size); node_size != 0) {
    options.node_size = node_size;
  }
  if (line.given("link_gbit")) {
    options.link_gbit = absl::GetFlag(FLAGS_link_gbit);
  }
  if (line.given("link_us")) {
    options.link_us = absl::GetFlag(FLAGS_link_us);
  }
  if (line.given("auto_bits")) {
    options.auto_bits = absl::GetFlag(FLAGS_auto_bits);
  }
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

}  // namespace

const std::vector<std::string>& exchange_flags() {
  static const std::vector<std::string> flags = {"hook",
                                                 "hook_format",
                                                 "stochastic_rounding",
                                                 "error_feedback",
                                                 "exempt_one_dimensional",
                                                 "levels",
                                                 "node_size",
                                                 "link_gbit",
                                                 "link_us",
                                                 "auto_bits",
                                                 "channel_size",
                                                 "bucket_cap_mb",
                                                 "find_unused_parameters",
                                                 "static_graph",
                                                 "gradient_as_bucket_view"};
  return flags;
}

const std::vector<std::string>& hook_option_flags() {
  static const std::vector<std::string> flags = {
      "hook_format", "stochastic_rounding", "error_feedback", "exempt_one_dimensional",
      "levels",      "node_size",           "link_gbit",      "link_us",
      "auto_bits",   "channel_size"};
  return flags;
}

DdpOptions read_ddp(const program::CommandLine& line) {
  return DdpOptions()
      .hook(absl::GetFlag(FLAGS_hook))
      .wire(read_wire(line))
      .channel_size(line.given("channel_size") ? std::optional(absl::GetFlag(FLAGS_channel_size)) : std::nullopt)
      .bucket_cap_mb(read_bucket_cap())
      .find_unused_parameters(absl::GetFlag(FLAGS_find_unused_parameters))
      .static_graph(absl::GetFlag(FLAGS_static_graph))
      .gradient_as_bucket_view(absl::GetFlag(FLAGS_gradient_as_bucket_view));
}

}  // namespace narrowcast

#include "trainer/train/flags/train_flags.h"

#include <absl/flags/declare.h>
#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/hook_table.h"

ABSL_DECLARE_FLAG(int64_t, seed);  // Also of random rounding.

ABSL_FLAG(std::string, hook, "none",
          absl::StrCat("How gradients travel between ranks: ",
                       absl::StrJoin(narrowcast::hooks::comm_hook_names(), ", "), "; see docs/hooks.md."));
ABSL_FLAG(std::string, hook_format,
          std::string(narrowcast::to_string(*narrowcast::hooks::wire_format_of("quantized_allreduce"))),
          absl::StrCat("With --hook=", narrowcast::hooks::hook_names_with(&narrowcast::hooks::HookRow::takes_format),
                       ": how gradients travel: ", narrowcast::wire_format_names(), "; see docs/wire_format.md."));
ABSL_FLAG(int64_t, channel_size, narrowcast::hooks::kDefaultChannelSize,
          absl::StrCat("With --hook=",
                       narrowcast::hooks::hook_names_with(&narrowcast::hooks::HookRow::takes_channel_size),
                       ": how many elements share a scale; at least 1."));
ABSL_FLAG(bool, stochastic_rounding, false,
          "With quantized_allreduce and its short names: round gradients up or down at random, by --seed.");
ABSL_FLAG(bool, error_feedback, false,
          "With quantized_allreduce and its short names: add in the next step what rounding left out.");
ABSL_FLAG(bool, exempt_one_dimensional, false,
          "With quantized_allreduce and its short names: send gradients of biases and norms as float32.");
ABSL_FLAG(double, bucket_cap_mb, 25, "Size of a gradient bucket, in MiB.");
ABSL_FLAG(bool, find_unused_parameters, false, "Let parameters stay unused in some backward passes.");
ABSL_FLAG(bool, static_graph, false, "Promise that every step uses the same parameters in the same way.");
ABSL_FLAG(bool, gradient_as_bucket_view, false, "Let gradients be views of the buckets, which saves their copy.");

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
  return options;
}

}  // namespace

const std::vector<std::string>& exchange_flags() {
  static const std::vector<std::string> flags = {
      "hook",         "hook_format",   "stochastic_rounding",    "error_feedback", "exempt_one_dimensional",
      "channel_size", "bucket_cap_mb", "find_unused_parameters", "static_graph",   "gradient_as_bucket_view"};
  return flags;
}

const std::vector<std::string>& hook_option_flags() {
  static const std::vector<std::string> flags = {"hook_format", "stochastic_rounding", "error_feedback",
                                                 "exempt_one_dimensional", "channel_size"};
  return flags;
}

DdpOptions read_ddp(const program::CommandLine& line) {
  return DdpOptions()
      .hook(absl::GetFlag(FLAGS_hook))
      .wire(read_wire(line))
      .channel_size(line.given("channel_size") ? std::optional(absl::GetFlag(FLAGS_channel_size)) : std::nullopt)
      .bucket_cap_mb(absl::GetFlag(FLAGS_bucket_cap_mb))
      .find_unused_parameters(absl::GetFlag(FLAGS_find_unused_parameters))
      .static_graph(absl::GetFlag(FLAGS_static_graph))
      .gradient_as_bucket_view(absl::GetFlag(FLAGS_gradient_as_bucket_view));
}

}  // namespace narrowcast

// Hooks by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace NARROWCAST_EXPORT narrowcast {
namespace hooks {

// The names that create_comm_hook takes, "none" first, in the order of the documentation.
std::vector<std::string> comm_hook_names();

// Throws c10::ValueError for:
// - an unknown name; the message lists the known ones,
// - options that have no effect with the hook or contradict each other,
// - an option out of range.
//
// The process group is not checked.
void check_hook_options(const std::string& name, const HookOptions& options);

// The same check with separate options.
inline void check_comm_hook(const std::string& name, const WireOptions& wire,
                            std::optional<int64_t> channel_size = std::nullopt, const LocalOptions& local = {},
                            const PowerSgdOptions& power_sgd = {}) {
  check_hook_options(
      name, {.process_group = {}, .wire = wire, .channel_size = channel_size, .local = local, .power_sgd = power_sgd});
}

// Number of elements of a channel with that hook; empty for hooks without channels. `channel_size`: the chosen value.
// c10::ValueError for an unknown hook, here and below.
std::optional<int64_t> channel_size_of(const std::string& hook, std::optional<int64_t> channel_size = std::nullopt);

// Whether the hook has channels, whose size can be chosen.
inline bool takes_channel_size(const std::string& hook) { return channel_size_of(hook).has_value(); }

// The wire format of that hook; empty if it does not use one.
std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire = {});

// Whether WireOptions affect that hook: true for wire-format hooks and for auto.
bool takes_wire_options(const std::string& hook);

// The rank of that hook's approximation; empty for hooks other than PowerSGD. `options`: the chosen values.
std::optional<int64_t> power_sgd_rank_of(const std::string& hook, const PowerSgdOptions& options = {});

// The options with the hook's defaults filled in.
HookOptions effective_options(const std::string& hook, HookOptions options);

// The hook of that name; null for "none", with which the Reducer averages. A collective: ranks compare the hook and its
// options, and for wire-format, PowerSGD and post_local_sgd hooks and auto they detect nodes and may measure the
// network. For "none" without a process group nothing is compared. Throws:
// - c10::ValueError as check_hook_options, on all ranks if one rank's options are wrong,
// - c10::ValueError for a missing process group, or one without a backend that the hook needs,
// - c10::ValueError on all ranks if their hooks, devices or options differ,
// - c10::ValueError on all ranks for levels that are not possible,
// - c10::DistBackendError if a peer fails.
std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options);

// Wraps `hook` like PyTorch's fp16_compress_wrapper and bf16_compress_wrapper: rounds each bucket to `format`, "fp16"
// or "bf16", passes it to `hook`, and casts the result back to the bucket's dtype. All ranks must wrap in the same way.
// The name is "FORMAT(NAME)"; state, counters and other properties are those of `hook`. The error feedback of `hook`
// does not include the rounding to `format`. c10::ValueError for null and for other formats.
std::unique_ptr<CommHook> wrap_in_format(std::unique_ptr<CommHook> hook, const std::string& format);

}  // namespace hooks
}  // namespace narrowcast
